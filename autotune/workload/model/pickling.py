"""Pickling of the user's objects for child processes: arguments, then the model, then the parts, which may refer to it.

    | class and its fields of the arguments | model_init | dataset, collator, Trainer class, ... | eval_dataset, metrics | size |
      opened before memory is limited         counted       may hold the model, a layer of it     opened by the check alone

Four pickles one after another, then the size of the last. In the last two, names stand for the Trainer's arguments, its model,
layers and parameters.
"""

import functools
import inspect
import io
import os
import pickle
import site
import socket
import sqlite3
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from autotune.core.errors import InvalidRequest
from autotune.core.note import Note
from autotune.core.warning import ResultWarning
from autotune.workload.data.workers import Workers
from autotune.workload.extract import BUILD
from autotune.workload.model.rebuild import arguments_needed, called
from autotune.workload.references import Comparison, content, function_of, globals_of, inside

OF_ARGUMENTS = ("arguments_class", "own_fields")
"""Objects in the first pickle, if given."""

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


def packed(model: Any, objects: Mapping[str, Any]) -> Payload:
    """The model that a search was given, with these objects; no bytes if it is a name. Raises InvalidRequest."""
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
    """The objects as bytes; trainer: the parts may refer to its model. Raises InvalidRequest if one cannot be sent."""
    names = _names(trainer) if trainer is not None else {}
    first = {name: objects[name] for name in OF_ARGUMENTS if name in objects}
    last = {name: part for name, part in objects.items() if name not in (*OF_ARGUMENTS, "model_init", EVALUATION)}
    if "train_dataset" in objects:
        last["workers"] = Workers.of_this_process(objects["train_dataset"], objects.get("data_collator"))
    elif "build" in objects:
        last["workers"] = Workers.of_build()
    stream = io.BytesIO()
    for group, known in ((first, {}), ({"model_init": objects.get("model_init")}, {}), (last, names)):
        try:
            _Sender(stream, known, trainer).dump(group)
        except Exception as error:  # whatever an object's pickling raises
            what, reason, advice = _unsendable(group, known, trainer, error)
            advice = f"{advice} {BUILD}" if trainer is not None else advice
            raise InvalidRequest(f"{what} cannot be sent to another process: {reason}.", advice) from error
    begin, evaluation = stream.tell(), objects.get(EVALUATION)
    try:
        _Sender(stream, names, trainer).dump(evaluation)
    except Exception as error:  # as above
        what, reason, _ = _unsendable(evaluation or {}, names, trainer, error)
        stream.truncate(begin)
        stream.seek(begin)
        pickle.dump(f"{what} cannot be sent to another process: {reason}", stream)
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
    try:
        _Sender(io.BytesIO(), _names(trainer), trainer).dump(part)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def received(stream: io.BytesIO, model: Callable[[], Any] | None = None, arguments: Any = None) -> Any:
    """The stream's next group of objects; model: gives the model if they refer to it; arguments: the Trainer's."""
    return _Receiver(stream, model, arguments).load()


CALLED = {
    "trainer_class": "The Trainer's class",
    "trainer_arguments": "An argument of the Trainer",
    "build": "The function that builds the Trainer",
    "on_arguments": "What was set on the arguments",
    "own_fields": "A field of the arguments",
    "arguments_class": "The arguments' class",
}
"""Objects that are sent, in words, if not by their names."""


def _unsendable(
    group: Mapping[str, Any], names: Mapping[int, Any], trainer: Any, error: Exception
) -> tuple[str, str, str]:
    """(which of the objects cannot be sent, why, what to do about it): by the innermost thing that cannot be sent."""
    from autotune.workload.hub import first_line

    def why_not(part: Any) -> Exception | None:
        try:
            _Sender(io.BytesIO(), names, trainer).dump(part)
        except Exception as error:
            return error
        return None

    what, part, holder = "What you passed", group, ""
    for name, value in group.items():
        if why_not(value) is not None:
            own_model = "The model" if trainer is not None and name == "model_init" else f"The {name}"
            what, part = CALLED.get(name, own_model), value
            break
    seen, is_deeper = set[int](), True
    while is_deeper and (trainer is None or part is not trainer):
        seen.add(id(part))
        is_deeper = False
        for owner, name, inner in _held(part):
            if id(inner) not in seen and (reason := why_not(inner)) is not None:
                inside_holder = f"{holder}[{name!r}]" if holder and name else name or holder
                holder = f"{owner} uses {name}" if owner and name else inside_holder
                part, error, is_deeper = inner, reason, True
                break
    refused: list[tuple[Any, str, str]] = [*UNSENDABLE]
    if part is trainer:
        refused.insert(0, (type(trainer), "the Trainer itself", "Let it hold what it needs of the Trainer instead."))
    for kinds, word, advice in refused:
        if isinstance(part, kinds):
            return what, f"{holder}, {word}" if holder else f"it is {word}", advice
    text = f"{type(error).__name__}: {first_line(error)}"
    return what, f"{holder}: {text}" if holder else text, "Make it in the process that uses it, at its first use."


def _held(value: Any) -> Iterator[tuple[str, str, Any]]:
    """(owner, name, value) of what is pickled with a value; names are empty for what belongs to the value itself, or is ours."""
    if isinstance(value, types.FunctionType):
        owner = value.__qualname__.rpartition("<locals>.")[2]
        cells = zip(value.__code__.co_freevars, map(content, value.__closure__ or ()), strict=True)
        yield from ((owner, name, inner) for name, inner in (*cells, *globals_of(value).items()))
    elif isinstance(value, type):
        yield from (("", "", function_of(member)) for member in vars(value).values() if callable(function_of(member)))
        yield from ((value.__qualname__, name, member) for name, member in vars(value).items() if not callable(member))
    elif isinstance(value, (types.MethodType, functools.partial)):
        yield from (("", "", inner) for inner in inside(value))
    elif isinstance(value, Mapping):
        yield from (("", name if isinstance(name, str) else "", inner) for name, inner in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", "", inner) for inner in value)
    owner = type(value).__qualname__.rpartition("<locals>.")[2]
    is_ours = type(value).__module__.startswith("autotune.")
    if not isinstance(value, (type, types.FunctionType)):
        yield from (
            ("" if is_ours else owner, "" if is_ours else name, inner)
            for name, inner in getattr(value, "__dict__", {}).items()
        )
        yield "", "", type(value)


WHERE_USED = (
    "Open it where it is used, at its first use: in the method, in model_init, or in the dataset's __getitem__."
)
UNSENDABLE = (
    (io.IOBase, "an open file", WHERE_USED),
    (sqlite3.Connection, "a connection to a database", WHERE_USED),
    (socket.socket, "a connection", WHERE_USED),
    ((type(threading.Lock()), type(threading.RLock())), "a lock", "Make it where it is used, at its first use."),
    (types.GeneratorType, "a generator", "Use a list, or a class with __iter__ that begins it again."),
)
"""Kinds of objects that belong to one process, in words, and what to do instead."""


def _names(trainer: Any) -> dict[int, tuple[str, str]]:
    """Identity of the Trainer's arguments, its model's layers and parameters -> (kind, name in the model)."""
    names = {id(parameter): (PARAMETER, name) for name, parameter in trainer.model.named_parameters()}
    names |= {id(module): (MODULE, name) for name, module in trainer.model.named_modules()}
    return names | {id(trainer.args): (ARGUMENTS, "")}


class _Sender(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles parts of the model by name, and an optimizer without its state.

    Objects that are defined in a module that a child would not find are pickled by value.
    """

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
        if self._trainer is not None and obj is self._trainer:
            raise pickle.PicklingError("it holds the Trainer itself")
        return self._names.get(id(obj)) if self._names else None

    def reducer_override(self, obj: Any) -> Any:
        if self._trainer is not None and hasattr(obj, "param_groups") and hasattr(obj, "zero_grad"):
            return rebuilt_optimizer, _optimizer_parts(obj)
        if type(obj).__name__ == "Tensor" and str(obj.dtype).startswith(
            "torch.float8"
        ):  # torch 2.13 cannot unpickle it
            import torch

            return torch.Tensor.view, (obj.view(torch.uint8), obj.dtype)
        if isinstance(obj, io.TextIOWrapper) and obj not in (sys.stdout, sys.stderr):  # cloudpickle would send its text
            raise pickle.PicklingError("an open file")
        if isinstance(obj, types.FunctionType) and self._reads_trainer(obj):
            raise pickle.PicklingError("it reads the Trainer itself from a global")
        if isinstance(name := obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None), str):
            self._register(name)
        return super().reducer_override(obj)

    def _register(self, name: str) -> None:
        """Pickle by value what this module defines, if a child would not find the module."""
        module = sys.modules.get(name)
        if name == "__main__" or name in self._importable or module is None:
            return
        self._importable[name] = is_importable(name)
        if not self._importable[name]:
            self._send_by_value(module)

    def _reads_trainer(self, function: types.FunctionType) -> bool:
        """True if a function reads the Trainer, or a method of it, from a global, which a child's module would not have."""
        read = (getattr(value, "__self__", value) for value in globals_of(function).values())
        return self._trainer is not None and any(value is self._trainer for value in read)

    def _send_by_value(self, module: ModuleType | None) -> None:
        if module is not None and module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)
            self._by_value.append(module)


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


def rebuilt_optimizer(kind: type, defaults: Mapping[str, Any], groups: list[dict[str, Any]]) -> Any:
    """An optimizer of this class over these groups of parameters, each with its settings."""
    parameters = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return kind(groups, **{name: value for name, value in defaults.items() if takes_all or name in parameters})


def _optimizer_parts(optimizer: Any) -> tuple[type, dict[str, Any], list[dict[str, Any]]]:
    return type(optimizer), dict(optimizer.defaults), [dict(group) for group in optimizer.param_groups]


OF_STEPS = ("state", "step", "_step_count", "_opt_called", "_warned_capturable_if_run_uncaptured")
"""Attributes of an optimizer that its steps and a schedule change, or that are compared separately."""


def check_optimizer(optimizer: Any) -> None:
    """Raise InvalidRequest, one line, for an optimizer that is not as a child makes it of its class and groups."""
    name = type(optimizer).__name__
    try:
        fresh = rebuilt_optimizer(*_optimizer_parts(optimizer))
    except Exception as error:  # whatever the class's __init__ raises
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise InvalidRequest(f"Your {name} cannot be built again from its parameter groups: {why}.", BUILD) from error
    ours, others = (
        {key: value for key, value in vars(each).items() if key not in OF_STEPS} for each in (optimizer, fresh)
    )
    differing = Comparison([(optimizer, fresh)]).differing(ours, others)
    step = vars(optimizer).get("step")
    if step is not None and inspect.unwrap(getattr(step, "__func__", step)) is not inspect.unwrap(type(optimizer).step):
        differing.append("step")
    if differing:
        raise InvalidRequest(
            f"{differing[0]} of your {name} is not as its class makes it of its parameter groups.",
            BUILD,
        )
