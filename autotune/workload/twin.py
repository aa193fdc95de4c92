"""Attributes set on a Trainer and its arguments after they were built, by comparison with a twin.

trainer --its class, parts, arguments--> twin, built as probes build theirs
   attributes that the twin has not, or with other values = given to a new Trainer too
"""

import ast
import contextlib
import copy
import functools
import inspect
import os
import textwrap
import types
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

from autotune.core.errors import InvalidRequest
from autotune.space.settings.precision import LAUNCHED
from autotune.workload import extract
from autotune.workload.hub import first_line
from autotune.workload.model.rebuild import plain_attributes
from autotune.workload.rebinding import parts_of_call, rebound

if TYPE_CHECKING:
    import torch

OF_EACH_TRAINER = ("accelerator", "callback_handler", "state", "control", "args")
"""Parts that each Trainer makes for itself."""

LIBRARIES = ("transformers", "trl")
"""Packages of Trainers with methods that assign nothing that a new Trainer's methods would not assign too."""

MADE_IN_TRAINING = ("_loggers_initialized", "_memory_tracker", "model_init")
"""Attributes of a Trainer that do not decide how it trains, or that are read separately, in addition to the ones that the methods
of `LIBRARIES` assign."""

OF_ACCELERATOR = ("state", "gradient_state", "step", "scaler", "trackers", "log_with", "flag_tensor", "ddp_handler")
"""Public attributes of an Accelerator that a training changes, or that do not concern one device."""

BY_AUTOTUNE = "set_by_autotune"
"""Marks a function that `apply` has put on a Trainer."""


@dataclass(frozen=True)
class SetLater:
    """Attributes that a new Trainer must be given because its constructor does not set them, by name."""

    attributes: Mapping[str, Any] = field(default_factory=dict)  #: of the Trainer
    of_arguments: Mapping[str, Any] = field(default_factory=dict)  #: of its arguments: no fields

    def give(self, trainer: Any) -> None:
        """Set the attributes of the Trainer; its arguments get theirs before it is built."""
        vars(trainer).update(self.attributes)
        if "model" in self.attributes:
            trainer.model_wrapped = trainer.callback_handler.model = trainer.model

    def for_trainer(self, new: Any, trainer: Any) -> "SetLater":
        """The same with `new`, whose arguments exist, in the place of the Trainer. Raises InvalidRequest, see `rebound`."""
        places = ((trainer, new), (trainer.args, new.args))
        refused = {name: getattr(trainer, name) for name in OF_EACH_TRAINER if name != "args"}
        attributes, of_arguments = rebound((dict(self.attributes), dict(self.of_arguments)), places, refused)
        return SetLater(attributes, of_arguments)


def set_later(trainer: Any) -> SetLater:
    """Attributes set on this Trainer and its arguments after they were built, or not the same in one that is built again.

    Raises InvalidRequest, one line that names the attribute, for one that a new Trainer cannot be given.
    """
    if getattr(trainer.args, "use_vllm", False):
        raise InvalidRequest(
            "The Trainer generates with vLLM, and a new Trainer would start that again.",
            "Build it with the arguments that result.training_arguments() makes.",
        )
    of_arguments = set_on_arguments(trainer.args)
    _check_read_once(trainer)
    twin, model = _twin(trainer)
    _check_model(trainer, model)
    comparison = _Comparison(trainer, twin, model)
    skipped = _made_in_training(trainer)
    ours, fresh = (
        {name: value for name, value in vars(each).items() if name not in skipped} for each in (trainer, twin)
    )
    if gone := sorted(fresh.keys() - ours.keys()):
        raise InvalidRequest(
            f"The {type(trainer).__name__} has no {gone[0]}, which its __init__ sets.",
            "Set it to None instead of deleting it.",
        )
    attributes = {
        name: value
        for name, value in ours.items()
        if name != "model" and not getattr(value, BY_AUTOTUNE, False)
        if name not in fresh or not comparison.same(value, fresh[name])
    }
    if twin.model is not model and trainer.model_init is None:  # its constructor wraps what it is given
        attributes["model"] = trainer.model
    columns = trainer._signature_columns
    if columns is not None:
        twin._set_signature_columns_if_needed()
        if set(columns) != set(twin._signature_columns or ()):
            attributes["_signature_columns"] = columns
    _check_parts(trainer, twin, comparison)
    later = SetLater(attributes, of_arguments)
    later.for_trainer(twin, trainer)  # raises if a new Trainer cannot be given one
    return later


# The twin ---------------------------------------------------------------------------------------------------------


def _twin(trainer: Any) -> tuple[Any, Any]:
    """(a Trainer of the same class, parts and arguments, the model that it was given): a copy without storage if possible."""
    args = _copied(trainer.args)
    args.report_to, args.push_to_hub, args.enable_jit_checkpoint = [], False, False
    parts = {**extract.parts(trainer), "model": trainer.model}
    reason: Any = None
    for prepared in (_outlines, dict):
        try:
            with warnings.catch_warnings(action="ignore"), _aside(trainer.model):
                given = prepared(parts)
                return extract.built_again(type(trainer), given | {"args": args}), given["model"]
        except Exception as error:  # whatever the class's __init__ raises
            reason = error
    raise InvalidRequest(
        f"A new {type(trainer).__name__} cannot be built from the parts of this one: "
        f"{type(reason).__name__}: {first_line(reason)}.",
        "Let its __init__ accept what the Trainer keeps: trials would fail in the same way.",
    ) from reason


def _copied(args: Any) -> Any:
    """A copy that shares no list and no dict with them, and has their device already."""
    copied = copy.copy(args)
    vars(copied).update({name: extract.unshared(value) for name, value in vars(args).items()})
    return copied


def _outlines(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts, with copies without storage of the models among them."""
    import torch

    def modules_of(part: Any) -> list[Any]:
        if isinstance(part, (dict, list, tuple)):  # as losses for several datasets
            return [
                module for each in (part.values() if isinstance(part, dict) else part) for module in modules_of(each)
            ]
        return [part] if isinstance(part, torch.nn.Module) else []

    holding = {name: part for name, part in parts.items() if modules_of(part)}
    memo: dict[int, Any] = {}
    for module in modules_of(holding):
        for tensor in (*module.parameters(), *module.buffers()):
            empty = torch.empty_like(tensor.detach(), device="meta")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return {**parts, **copy.deepcopy(holding, memo)}


@contextlib.contextmanager
def _aside(model: Any) -> Iterator[None]:
    """Within, this model and models without storage stay as they are; afterwards accelerate's shared state is as before."""
    import torch
    from accelerate.state import AcceleratorState

    move, state = torch.nn.Module.to, dict(AcceleratorState._shared_state)

    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        stays = module is model or any(parameter.is_meta for parameter in module.parameters())
        return module if stays else move(module, *args, **kwargs)

    torch.nn.Module.to = to
    AcceleratorState._shared_state.clear()
    try:
        yield
    finally:
        torch.nn.Module.to = move
        AcceleratorState._shared_state.clear()
        AcceleratorState._shared_state.update(state)


# Compared values -------------------------------------------------------------------------------------------------


def _made_in_training(trainer: Any) -> set[str]:
    libraries = [kind for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] in LIBRARIES]
    names = {*MADE_IN_TRAINING, *OF_EACH_TRAINER, *_cached(type(trainer))}.union(*map(_assigned, libraries))
    if trainer.state.global_step and libraries[0].__module__.startswith("trl."):  # metrics, completions, buffers
        names |= {name for name in vars(trainer) if name.startswith("_")}
    return names - {name for name, value in vars(trainer).items() if callable(value) and hasattr(type(trainer), name)}


@functools.cache
def _assigned(kind: type) -> frozenset[str]:
    """Attributes that this class's methods, but not its `__init__`, assign to `self`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    methods = [
        item for item in getattr(tree, "body", ()) if isinstance(item, ast.FunctionDef) and item.name != "__init__"
    ]
    return frozenset(
        node.attr
        for method in methods
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    )


def _cached(kind: type) -> set[str]:
    """Names of its properties that are kept once they are computed."""
    members = ((name, member) for each in kind.__mro__ for name, member in vars(each).items())
    return {name for name, member in members if isinstance(member, functools.cached_property)}


def set_on_arguments(args: Any) -> dict[str, Any]:
    """Attributes of the arguments that are not fields and that building them would not set to the same value."""
    from transformers import TrainingArguments

    usual = {item.name for item in fields(args)} | _assigned(TrainingArguments) | _cached(type(args))
    further = {name: value for name, value in vars(args).items() if name not in usual}
    if not further:
        return {}
    without = _copied(args)
    for name in further:
        delattr(without, name)
    made = vars(extract.constructed_again(without, extract.computed_fields(args)) or without)
    return {name: value for name, value in further.items() if name not in made or not _equal(made[name], value)}


def _check_read_once(trainer: Any) -> None:
    """Raise InvalidRequest if the Trainer was built before its arguments had the precision or batch size that they state now."""
    args = trainer.args
    size = trainer._train_batch_size
    if size != args.train_batch_size and not args.auto_find_batch_size:
        raise InvalidRequest(
            f"The Trainer was built with batches of {size}, which it keeps, and its arguments say {args.train_batch_size} now.",
            "Set per_device_train_batch_size before the Trainer is built.",
        )
    stated = "fp16" if args.fp16 else "bf16" if args.bf16 else os.environ.get(LAUNCHED, "no")
    built = getattr(trainer.accelerator, "native_amp", stated != "no")
    if built != (stated != "no"):
        raise InvalidRequest(
            f"The Trainer was built {'with' if built else 'without'} mixed precision, which it keeps, and its arguments say "
            f"{stated} now.",
            "Set fp16 and bf16 before the Trainer is built.",
        )


def _check_model(trainer: Any, model: Any) -> None:
    """Raise InvalidRequest if the constructor has changed this model, a copy of the Trainer's: it would change that too."""
    changed = [
        f"layer {name or type(ours).__name__}"
        for (name, ours), (other_name, other) in zip(trainer.model.named_modules(), model.named_modules(), strict=False)
        if name != other_name or type(ours) is not type(other) or plain_attributes(ours) != plain_attributes(other)
    ]
    weights, others = (dict(each.named_parameters()) for each in (trainer.model, model))
    if weights.keys() != others.keys():
        changed.append("parameters")
    changed += [
        name for name in weights if name in others and weights[name].requires_grad != others[name].requires_grad
    ]
    changed += _differing_config(trainer.model, model)
    if changed:
        raise InvalidRequest(
            f"The __init__ of {type(trainer).__name__} changes the model that it is given ({changed[0]}): a new one would "
            "change it again.",
            "Change the model before the Trainer is built.",
        )


def _differing_config(model: Any, other: Any) -> list[str]:
    ours, others = (
        {**vars(config)} if (config := getattr(each, "config", None)) is not None else {} for each in (model, other)
    )
    names = [name for name in {**ours, **others} if name != "use_cache" and not name.startswith("_")]
    return [f"config.{name}" for name in names if not _equal(ours.get(name), others.get(name))]


def _check_parts(trainer: Any, twin: Any, comparison: "_Comparison") -> None:
    """Raise InvalidRequest if something was set on the Trainer's accelerator or callback handler."""
    for part in ("accelerator", "callback_handler"):
        ours, fresh = vars(getattr(trainer, part)), vars(getattr(twin, part))
        for name in ours:
            if name.startswith("_") or name in OF_ACCELERATOR:
                continue
            if name not in fresh or (part == "accelerator" and not comparison.same(ours[name], fresh[name])):
                raise InvalidRequest(
                    f"{name} of the Trainer's {part} is not as its arguments make it.",
                    f"Set its {part} in a subclass of {type(trainer).__name__}: a new Trainer makes its own.",
                )


def _equal(ours: Any, other: Any) -> bool:
    """By their comparison; False if that is not a yes or no."""
    try:
        equal = ours == other
        return bool(equal.all() if hasattr(equal, "all") else equal)
    except Exception:  # whatever an object's comparison raises
        return False


class _Comparison:
    """Comparison of values of a Trainer and its twin: one Trainer counts as the other, and so do their models."""

    def __init__(self, trainer: Any, twin: Any, model: Any) -> None:
        pairs = [(trainer, twin), *((getattr(trainer, name), getattr(twin, name)) for name in OF_EACH_TRAINER)]
        pairs += zip(trainer.model.modules(), model.modules(), strict=True)
        pairs += zip(trainer.model.parameters(), model.parameters(), strict=True)
        self._pairs = {(id(ours), id(other)) for ours, other in pairs}
        self._kept = pairs

    def same(self, ours: Any, other: Any) -> bool:
        """By their comparison, else by their contents. An object without visible contents, as a lock, equals any of its type."""
        import torch

        if ours is other or (id(ours), id(other)) in self._pairs:
            return True
        if type(ours) is not type(other):
            return False
        if isinstance(ours, torch.Tensor):
            return _same_tensor(ours, other)
        if _equal(ours, other):
            return True
        self._pairs.add((id(ours), id(other)))  # met again within itself
        self._kept.append((ours, other))
        same = self._holds_the_same(ours, other)
        if not same:
            self._pairs.discard((id(ours), id(other)))
        return same

    def _holds_the_same(self, ours: Any, other: Any) -> bool:
        if isinstance(ours, (types.FunctionType, types.MethodType, functools.partial)):
            return self.same(parts_of_call(ours), parts_of_call(other))
        if isinstance(ours, Mapping):
            if ours.keys() != other.keys() or not all(self.same(ours[name], other[name]) for name in ours):
                return False
        elif isinstance(ours, (list, tuple, deque)):
            if len(ours) != len(other) or not all(map(self.same, ours, other)):
                return False
        elif cast(Any, type(ours)).__eq__ is not object.__eq__ and not hasattr(ours, "__dict__"):
            return False  # numbers, texts, sets: their comparison was final
        mine, others = getattr(ours, "__dict__", {}), getattr(other, "__dict__", {})
        return mine.keys() == others.keys() and all(self.same(mine[name], others[name]) for name in mine)


def _same_tensor(ours: "torch.Tensor", other: "torch.Tensor") -> bool:
    import torch

    if (ours.shape, ours.dtype) != (other.shape, other.dtype):
        return False
    return bool(ours.is_meta or other.is_meta or torch.equal(ours.cpu(), other.cpu()))
