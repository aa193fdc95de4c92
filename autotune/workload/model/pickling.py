"""Pickling of the user's own objects for child processes: arguments, then the model, then the parts, which may refer to it.

    | class and own fields of the arguments | model_init | dataset, collator, Trainer class, optimizers, ... |
      opened before memory is limited         counted       may hold the model, a layer or a parameter of it

Three pickles one after another. In the third, names stand for the Trainer, its arguments, its model, layers and parameters.
"""

import inspect
import io
import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from autotune.core.errors import InvalidRequest
from autotune.workload.model.rebuild import arguments_needed, called

OF_ARGUMENTS = ("arguments_class", "own_fields")
"""What the first pickle holds, if it is given."""

TRAINER, ARGUMENTS, MODULE, PARAMETER = "trainer", "arguments", "module", "parameter"
"""What names stand for."""


@dataclass(frozen=True)
class Payload:
    """Objects ready to be sent."""

    name: str  #: of the model
    pickled: bytes
    notes: tuple[str, ...] = ()  #: for people, on what was sent and what was not
    warnings: tuple[str, ...] = ()  #: that concern every measurement
    user_arguments: Any = field(default=None, repr=False)  #: the Trainer's own; they stay in this process


def packed(model: Any, objects: Mapping[str, Any]) -> Payload:
    """The model that a search was given, with these objects; no bytes where it is a name. Raises InvalidRequest."""
    if isinstance(model, Payload):
        return model
    if isinstance(model, (str, os.PathLike)):
        if objects:
            raise InvalidRequest(
                f"{', '.join(objects)} need a `model_init` callable as the model.",
                "Pass a function that makes the model, or name the data with dataset=.",
            )
        return Payload(os.fspath(model), b"")
    if not callable(model) or (hasattr(model, "parameters") and not isinstance(model, type)):
        raise InvalidRequest(
            f"The model is a {type(model).__name__}.", "Pass a name, or a function or class that makes the model."
        )
    if needed := arguments_needed(model):
        raise InvalidRequest(
            f"{called(model)} cannot be made without {', '.join(needed)}.",
            f"Pass functools.partial({called(model)}, ...) or a function that makes the model.",
        )
    if "train_dataset" not in objects:
        raise InvalidRequest("A `model_init` needs a train_dataset.", "Pass the dataset that the Trainer would get.")
    return Payload(called(model), sent({"model_init": model, **objects}))


def sent(objects: Mapping[str, Any], trainer: Any = None) -> bytes:
    """The objects as bytes; trainer: whose model the parts may refer to. Raises InvalidRequest for what cannot be sent."""
    names = _names(trainer) if trainer is not None else {}
    first = {name: objects[name] for name in OF_ARGUMENTS if name in objects}
    last = {name: part for name, part in objects.items() if name not in (*OF_ARGUMENTS, "model_init")}
    stream = io.BytesIO()
    for group, known in ((first, {}), ({"model_init": objects.get("model_init")}, {}), (last, names)):
        try:
            _Sender(stream, known, trainer).dump(group)
        except Exception as error:  # whatever an object's own pickling raises
            raise InvalidRequest(
                f"{_which(group, names, trainer)} cannot be sent to another process: {type(error).__name__}: {error}.",
                "Open files and connections inside model_init or the dataset instead.",
            ) from error
    return stream.getvalue()


def can_be_sent(part: Any, trainer: Any) -> str:
    """Why this part of the Trainer cannot be sent; empty where it can."""
    try:
        _Sender(io.BytesIO(), _names(trainer), trainer).dump(part)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def received(
    stream: io.BytesIO, model: Callable[[], Any] | None = None, objects: Mapping[str, Any] | None = None
) -> Any:
    """The stream's next group of objects; model: gives the model if they refer to it; objects: TRAINER and ARGUMENTS."""
    return _Receiver(stream, model, objects or {}).load()


def _which(group: Mapping[str, Any], names: Mapping[int, Any], trainer: Any) -> str:
    """The first of the objects that cannot be sent, by its name."""
    for name, part in group.items():
        try:
            _Sender(io.BytesIO(), names, trainer).dump(part)
        except Exception:
            return f"What you passed as {name}"
    return "What you passed"


def _names(trainer: Any) -> dict[int, tuple[str, str]]:
    """Identity of the Trainer, its arguments, its model's layers and parameters -> (kind, name in the model)."""
    names = {id(parameter): (PARAMETER, name) for name, parameter in trainer.model.named_parameters()}
    names |= {id(module): (MODULE, name) for name, module in trainer.model.named_modules()}
    return names | {id(trainer): (TRAINER, ""), id(trainer.args): (ARGUMENTS, "")}


class _Sender(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what belongs to the model by its name, an optimizer without its state, and by value what is defined in a module
    that a child would not find."""

    def __init__(self, stream: io.BytesIO, names: Mapping[int, tuple[str, str]], trainer: Any) -> None:
        super().__init__(stream)
        self._names, self._trainer = names, trainer
        self._importable: dict[str, bool] = {}
        self._by_value: list[ModuleType] = []

    def dump(self, obj: Any) -> None:
        try:
            super().dump(obj)
        finally:
            for module in self._by_value:
                cloudpickle.unregister_pickle_by_value(module)
            self._by_value.clear()

    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        if self._trainer is not None and obj is self._trainer and not self._names:
            raise pickle.PicklingError("it holds the Trainer itself")
        return self._names.get(id(obj)) if self._names else None

    def reducer_override(self, obj: Any) -> Any:
        if self._trainer is not None and hasattr(obj, "param_groups") and hasattr(obj, "zero_grad"):
            return _optimizer, (type(obj), dict(obj.defaults), [dict(group) for group in obj.param_groups])
        if isinstance(name := obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None), str):
            self._register(name)
        return super().reducer_override(obj)

    def _register(self, name: str) -> None:
        """Pickle by value what this module defines, where a child would not find the module."""
        module = sys.modules.get(name)
        if name == "__main__" or name in self._importable or module is None:
            return
        self._importable[name] = is_importable(name)
        if not self._importable[name] and name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._by_value.append(module)


def is_importable(name: str) -> bool:
    """Whether a child that imports this module gets the file that it was loaded from here.

    A child searches this process's path; but it may have loaded a module of the same name before, from the path that the
    interpreter starts with. Of a package with a file of its own the package is searched.
    """
    module, package = sys.modules[name], name.partition(".")[0]
    top = sys.modules.get(package, module)
    if getattr(getattr(top, "__spec__", None), "loader", None) in (BuiltinImporter, FrozenImporter):
        return True
    if _file(top):
        name, module = package, top
    for path in (_initial_path(), [entry or os.getcwd() for entry in sys.path]):
        if file := _search(name, path):
            return _real(file) == _file(module)
    # An import hook that finds a package here (installed as editable) finds it in a child too.
    hooks = (finder for finder in sys.meta_path if finder is not PathFinder and hasattr(finder, "find_spec"))
    return any((spec := hook.find_spec(name, None)) and _real(spec.origin) == _file(module) for hook in hooks)


def _search(name: str, path: Sequence[str] | None) -> str:
    """The file of the module of this name along this path; empty where there is none."""
    spec, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
    return (spec and spec.origin) or ""


def _initial_path() -> list[str]:
    """The path of an interpreter that starts without a script: PYTHONPATH, its own library, installed packages."""
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [*named, *own, *site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _file(module: ModuleType) -> str:
    return _real(getattr(module, "__file__", None))


def _real(place: str | None) -> str:
    return os.path.realpath(place) if place else ""


class _Receiver(pickle.Unpickler):
    """Puts the child's own Trainer, arguments, model, layers and parameters in the place of their names."""

    def __init__(self, stream: io.BytesIO, model: Callable[[], Any] | None, objects: Mapping[str, Any]) -> None:
        super().__init__(stream)
        self._model, self._objects = model, objects

    def persistent_load(self, name: Any) -> Any:
        kind, path = name
        if kind in self._objects:
            return self._objects[kind]
        assert self._model is not None
        return self._model().get_parameter(path) if kind == PARAMETER else self._model().get_submodule(path)


def _optimizer(kind: type, defaults: Mapping[str, Any], groups: list[dict[str, Any]]) -> Any:
    """An optimizer of this class over these groups of parameters, each with its own settings."""
    parameters = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return kind(groups, **{name: value for name, value in defaults.items() if takes_all or name in parameters})
