"""Pickling of the user's objects for child processes: arguments, then the model, then the parts, which may refer to it.

    | class and its fields of the arguments | model_init | dataset, collator, Trainer class, ... | eval_dataset, metrics | size |
      opened before memory is limited         counted       may hold the model, a layer of it     opened by the check alone

Four pickles one after another, then the size of the last. In the last two, names stand for the Trainer's arguments, its model,
layers and parameters.
"""

import io
import os
import pickle
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from autotune.core.errors import InvalidRequest
from autotune.core.note import Note
from autotune.core.warning import ResultWarning
from autotune.workload.data.workers import Sink, why_no_workers
from autotune.workload.extract import BUILD
from autotune.workload.model.sent_model import WithoutWeights, empty_parameter
from autotune.workload.references import globals_of

OF_ARGUMENTS = ("arguments_class", "user_fields")
"""Objects in the first pickle, if given."""

OF_LOADER = ("train_dataset", "data_collator")
"""Objects that a data loader's workers get."""

THE_TRAINER = "the Trainer itself"

EVALUATION = "evaluation"
"""Name among the objects of the last pickle: attributes of a Trainer for its evaluation, in a dictionary."""

_SIZE_BYTES = 8

ARGUMENTS, MODULE, PARAMETER = "arguments", "module", "parameter"
"""Objects that names represent."""


@dataclass(frozen=True)
class Payload:
    """Objects ready to be sent."""

    name: str  #: of the model
    pickled: bytes
    notes: tuple[Note, ...] = ()  #: on objects that were sent or not
    differs: tuple[Note, ...] = ()  #: those of them on what probes train otherwise than the Trainer
    warnings: tuple[ResultWarning, ...] = ()  #: that concern every measurement
    user_arguments: Any = field(default=None, repr=False)  #: the Trainer's; they stay in this process
    trains_on: bool = False  #: the training goes on with the answer at once


def as_payload(model: Any) -> Payload:
    """The model that a search was given; no bytes if it is a name. Raises InvalidRequest."""
    if isinstance(model, Payload):
        return model
    if isinstance(model, (str, os.PathLike)):
        return Payload(os.fspath(model), b"")
    raise InvalidRequest(
        f"The model is a {type(model).__name__}.",
        "Pass its name or folder, or search for a Trainer of it: autotune.tune(trainer), or autotune.tune(build, args).",
    )


def sent(objects: Mapping[str, Any], trainer: Any = None) -> bytes:
    """The objects as bytes; trainer: the parts may refer to its model. Raises InvalidRequest if one cannot be sent."""
    names = _names(trainer) if trainer is not None else {}
    first = {name: objects[name] for name in OF_ARGUMENTS if name in objects}
    last = {name: part for name, part in objects.items() if name not in (*OF_ARGUMENTS, "model_init", EVALUATION)}
    last["no_workers"] = why_no_workers(None if "build" in objects else {name: objects.get(name) for name in OF_LOADER})
    stream = io.BytesIO()
    for group, known in ((first, {}), ({"model_init": objects.get("model_init")}, {}), (last, names)):
        try:
            _Sender(stream, known, trainer).dump(group)
        except Exception as error:  # whatever an object's pickling raises
            advice = "Make it where it is used, at its first use."
            raise InvalidRequest(
                f"{_refusal(group, known, trainer, error)}.", f"{advice} {BUILD}" if trainer is not None else advice
            ) from error
    begin, evaluation = stream.tell(), objects.get(EVALUATION)
    try:
        _Sender(stream, names, trainer).dump(evaluation)
    except Exception as error:  # as above
        stream.truncate(begin)
        stream.seek(begin)
        pickle.dump(_refusal(evaluation or {}, names, trainer, error), stream)
    return stream.getvalue() + (stream.tell() - begin).to_bytes(_SIZE_BYTES, "big")


def evaluation_of(objects: bytes, trainer: Any) -> dict[str, Any] | str:
    """Attributes for this Trainer's evaluation, which refer to its model; why they were not sent; empty if none were given."""
    if not objects:
        return {}
    size = int.from_bytes(objects[-_SIZE_BYTES:], "big")
    stream = io.BytesIO(objects[-_SIZE_BYTES - size : -_SIZE_BYTES])
    return received(stream, lambda: trainer.model, trainer.args) or {}


def can_be_sent(part: Any, trainer: Any) -> str:
    """Reason why this part of the Trainer cannot be sent; empty if it can."""
    return _why_not(part, _names(trainer), trainer)


def received(stream: io.BytesIO, model: Callable[[], Any] | None = None, arguments: Any = None) -> Any:
    """The stream's next group of objects; model: gives the model if they refer to it; arguments: the Trainer's."""
    return _Receiver(stream, model, arguments).load()


CALLED = {
    "trainer_class": "The Trainer's class",
    "trainer_arguments": "An argument of the Trainer",
    "build": "The function that builds the Trainer",
    "on_arguments": "What was set on the arguments",
    "user_fields": "A field of the arguments",
    "arguments_class": "The arguments' class",
    "model_init": "The model",
}
"""Objects that are sent, in words, if not by their names."""


def _refusal(group: Mapping[str, Any], names: Mapping[int, Any], trainer: Any, error: Exception) -> str:
    """Sentence on which of these objects cannot be sent, with the reason."""
    from autotune.workload.hub import first_line  # loads huggingface_hub

    name = next((name for name, part in group.items() if _why_not(part, names, trainer)), "")
    return f"{CALLED.get(name, f'The {name}')} cannot be sent to another process: {first_line(error)}"


def _why_not(part: Any, names: Mapping[int, Any], trainer: Any) -> str:
    try:
        _Sender(Sink(), names, trainer).dump(part)
    except Exception as error:  # whatever an object's pickling raises
        return f"{type(error).__name__}: {error}"
    return ""


def _names(trainer: Any) -> dict[int, tuple[str, str]]:
    """Identity of the Trainer's arguments, its model's layers and parameters -> (kind, name in the model)."""
    names = {id(parameter): (PARAMETER, name) for name, parameter in trainer.model.named_parameters()}
    names |= {id(module): (MODULE, name) for name, module in trainer.model.named_modules()}
    return names | {id(trainer.args): (ARGUMENTS, "")}


class _Sender(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles parts of the model by name, and an optimizer with all its attributes.

    Objects that are defined in a module that a child would not find are pickled by value.
    """

    def __init__(self, stream: io.BytesIO | Sink, names: Mapping[int, tuple[str, str]], trainer: Any) -> None:
        super().__init__(stream)
        self._names, self._trainer, self._weights = names, trainer, set[int]()
        self._is_kept = not isinstance(stream, Sink)
        self._seen = set[str]()
        self._by_value: list[ModuleType] = []

    def dump(self, obj: Any) -> None:
        try:
            super().dump(obj)
        finally:
            for module in self._by_value:
                cloudpickle.unregister_pickle_by_value(module)
            self._by_value.clear()

    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        if self._trainer is not None and obj is self._trainer:
            raise pickle.PicklingError(f"it holds {THE_TRAINER}")
        if not self._is_kept and hasattr(type(obj), "untyped_storage"):
            return PARAMETER, ""  # no copy of gigabytes for a check
        return self._names.get(id(obj)) if self._names else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, WithoutWeights):
            self._weights = {id(weight) for weight in obj.model.parameters()}
        if id(obj) in self._weights:
            return empty_parameter, (tuple(obj.shape), obj.dtype, obj.requires_grad, vars(obj))
        if self._trainer is not None and hasattr(obj, "param_groups") and hasattr(obj, "zero_grad"):
            return object.__new__, (type(obj),), _attributes_of(obj)
        if type(obj).__name__ == "Tensor" and str(obj.dtype).startswith(
            "torch.float8"
        ):  # torch 2.13 cannot unpickle it
            import torch

            return torch.Tensor.view, (obj.view(torch.uint8), obj.dtype)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):  # cloudpickle would send its text
            raise pickle.PicklingError("it holds an open file")
        if isinstance(obj, types.FunctionType) and self._reads_trainer(obj):
            raise pickle.PicklingError(f"it reads {THE_TRAINER} from a global")
        if isinstance(name := obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None), str):
            self._register(name)
        return super().reducer_override(obj)

    def _register(self, name: str) -> None:
        """Pickle by value what this module defines, if a child would not find the module."""
        module = sys.modules.get(name)
        if name == "__main__" or name in self._seen or module is None:
            return
        self._seen.add(name)
        if not is_importable(name) and name not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._by_value.append(module)

    def _reads_trainer(self, function: types.FunctionType) -> bool:
        """True if a function reads the Trainer, or a method of it, from a global, which a child's module would not have."""
        read = (getattr(value, "__self__", value) for value in globals_of(function).values())
        return self._trainer is not None and any(value is self._trainer for value in read)


def is_importable(name: str) -> bool:
    """True if a child that imports this module gets the file that it was loaded from here.

    A child searches this process's path; but it may have loaded a module of the same name before, from the path that the
    interpreter starts with. For a package with an `__init__` file the package is searched. False in a child for the module of
    a class that was sent by value, which is not loaded there.
    """
    if name not in sys.modules:
        return False
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
    """The file of the module of this name along this path; empty if there is none."""
    spec, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), path)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
    return (spec and spec.origin) or ""


def _initial_path() -> list[str]:
    """The path of an interpreter that starts without a script: PYTHONPATH, its library, installed packages."""
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    own = (sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [*named, *own, *site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _file(module: ModuleType) -> str:
    return _real(getattr(module, "__file__", None))


def _real(place: str | None) -> str:
    return os.path.realpath(place) if place else ""


class _Receiver(pickle.Unpickler):
    """Puts the child's arguments, model, layers and parameters in the place of their names."""

    def __init__(self, stream: io.BytesIO, model: Callable[[], Any] | None, arguments: Any) -> None:
        super().__init__(stream)
        self._model, self._arguments = model, arguments

    def persistent_load(self, name: Any) -> Any:
        kind, path = name
        if kind == ARGUMENTS:
            return self._arguments
        assert self._model is not None
        return self._model().get_parameter(path) if kind == PARAMETER else self._model().get_submodule(path)


def _attributes_of(optimizer: Any) -> dict[str, Any]:
    """Attributes of an optimizer; a schedule that wraps its `step` wraps it again."""
    step: Any = vars(optimizer).get("step")
    inner = {"step": types.MethodType(step.__wrapped__, optimizer)} if hasattr(step, "_wrapped_by_lr_sched") else {}
    return {**vars(optimizer), **inner}
