"""Comparison of a Trainer with a fresh one that its class makes of the same parts, as probes and `apply` make theirs."""

import ast
import contextlib
import copy
import functools
import inspect
import os
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.space.settings import precision
from autotune.workload import extract
from autotune.workload.extract import BUILD
from autotune.workload.hub import first_line
from autotune.workload.model.pickling import THE_TRAINER, can_be_sent
from autotune.workload.references import Comparison, equal

OF_EACH_TRAINER = ("accelerator", "callback_handler", "state", "control", "args")
"""Parts that each Trainer makes for itself."""

LIBRARIES = ("transformers", "trl")
"""Packages of Trainers with methods that assign nothing that a fresh Trainer's methods would not assign too."""

MADE_IN_TRAINING = ("_loggers_initialized", "_memory_tracker", "model_init")
"""Attributes of a Trainer that do not decide how it trains, or that are read separately, in addition to the ones that the methods
of `LIBRARIES` assign."""

OF_ACCELERATOR = ("state", "gradient_state", "step", "scaler", "trackers", "log_with", "flag_tensor", "ddp_handler")
"""Public attributes of an Accelerator that a training changes, or that do not concern one device."""

OF_TRAINING = {"training", "gradient_checkpointing", "_is_hf_initialized", "_use_kernels", "_is_accelerate_prepared"}
"""Attributes of layers that loading and training set, or a Trainer sets again."""

BY_AUTOTUNE = "set_by_autotune"
"""Marks a function that `apply` has put on a Trainer."""


def check_fresh(trainer: Any) -> list[Any]:
    """Returns the Trainer's callbacks that its class does not make by itself.

    Raises InvalidRequest, one line that names the attribute, if a fresh Trainer of the same class, parts and arguments differs.
    """
    if getattr(trainer.args, "use_vllm", False):
        raise InvalidRequest(
            "The Trainer generates with vLLM, and a fresh Trainer would start that again.",
            "Build it with the arguments that result.training_arguments() makes.",
        )
    wrapped = precision.unwrap(extract.models(trainer))
    try:
        return _callbacks_if_fresh(trainer)
    finally:
        precision.wrap_again(wrapped)


def _callbacks_if_fresh(trainer: Any) -> list[Any]:
    fresh, model = _fresh(trainer)
    if trainer.model_init is None and fresh.model is not model:
        raise _differs(trainer, "The model", "its __init__ wraps the model, and would wrap it again")
    _check_model(trainer, model)
    if hooked := next((name for name, weight in trainer.model.named_parameters() if _has_hooks(weight)), ""):
        raise _differs(trainer, f"The parameter {hooked}", "its hooks cannot be sent to another process")
    stated = bool(trainer.args.fp16 or trainer.args.bf16 or os.environ.get(precision.LAUNCHED, "no") != "no")
    if stated != (amp := getattr(trainer.accelerator, "native_amp", stated)):
        was = f"it was built with{'' if amp else 'out'} mixed precision, and its arguments say otherwise"
        raise _differs(trainer, "The precision", was)
    comparison = _comparison(trainer, fresh, model)
    if differing := _differing(trainer, fresh, comparison):
        again, its_model = _fresh(trainer)  # a time or a random number is another one in each
        random = _differing(fresh, again, _comparison(fresh, again, its_model, model))
        known = vars(fresh).keys() & vars(trainer).keys()
        if names := [name for name in differing if name not in random or name not in known]:
            raise _differs(trainer, names[0])
    return _user_callbacks(trainer, fresh, comparison)


def _comparison(trainer: Any, fresh: Any, model: Any, of_trainer: Any = None) -> Comparison:
    """Comparison in which the Trainer, its own parts, layers and parameters count as the fresh one's. model: that one's."""
    given = trainer.model if of_trainer is None else of_trainer
    pairs = [(trainer, fresh), *((getattr(trainer, name), getattr(fresh, name)) for name in OF_EACH_TRAINER)]
    pairs += zip(given.modules(), model.modules(), strict=True)
    pairs += zip(given.parameters(), model.parameters(), strict=True)
    return Comparison(pairs)


def _differing(trainer: Any, fresh: Any, comparison: Comparison) -> list[str]:
    """Names of what differs: attributes, and those of the accelerator and the callback handler."""
    skipped = _made_in_training(trainer)
    ours, others = (
        {name: value for name, value in vars(each).items() if name not in skipped} for each in (trainer, fresh)
    )
    names = [name for name in comparison.differing(ours, others) if not getattr(ours.get(name), BY_AUTOTUNE, False)]
    if trainer._signature_columns is not None:
        fresh._set_signature_columns_if_needed()
        if set(trainer._signature_columns) != set(fresh._signature_columns or ()):
            names.append("_signature_columns")
    for part in ("accelerator", "callback_handler"):
        ours, others = (
            {name: value for name, value in vars(getattr(each, part)).items() if name[:1] != "_"}
            for each in (trainer, fresh)
        )
        either = [name for name in {**ours, **others} if name not in OF_ACCELERATOR]
        names += [
            f"{part}.{name}"
            for name in either
            if (name in ours) != (name in others)
            or (part == "accelerator" and not comparison.same(ours[name], others[name]))
        ]
    return names


def _differs(
    trainer: Any, name: str, why: str = "it was set on the Trainer, or its __init__ is not given what made it"
) -> InvalidRequest:
    return InvalidRequest(f"{name} is not as in a fresh {type(trainer).__name__} of the same parts: {why}.", BUILD)


def _user_callbacks(trainer: Any, fresh: Any, comparison: Comparison) -> list[Any]:
    """Callbacks beside those of a fresh Trainer. Raises InvalidRequest for those that differ from it or hold the Trainer."""
    made, own = list(fresh.callback_handler.callbacks), list[Any]()
    for callback in extract.user_callbacks(trainer):
        alike = [other for other in made if type(other) is type(callback)]
        if match := next((other for other in alike if comparison.same(callback, other)), (alike or [None])[0]):
            made.remove(match)
            if not trainer.state.global_step and not comparison.same(callback, match):
                raise _differs(trainer, f"The callback {type(callback).__name__}", "its class gets other arguments")
            continue
        own.append(callback)
    if removed := [other for other in extract.user_callbacks(fresh) if other in made]:
        raise _differs(trainer, f"The callback {type(removed[0]).__name__}", "its class makes it, and it was removed")
    parts: dict[str, Any] = {f"The callback {type(callback).__name__}": callback for callback in own}
    parts |= {f"The {name}": part for name, part in extract.parts(trainer).items() if name not in extract.DATASETS}
    for name, part in {**parts, "The Trainer's class": type(trainer)}.items():
        if THE_TRAINER in can_be_sent(part, trainer):
            raise InvalidRequest(f"{name} refers to the Trainer itself, and trials train a fresh one.", BUILD)
    return own


# The fresh Trainer --------------------------------------------------------------------------------------------------


def _fresh(trainer: Any) -> tuple[Any, Any]:
    """(a Trainer of the same class, parts and arguments, the model that it was given): a copy without storage if possible."""
    args = _copied(trainer.args)
    args.report_to, args.push_to_hub, args.enable_jit_checkpoint = [], False, False
    parts = {**extract.parts(trainer), "model": trainer.model}
    reason: Any = None
    for prepared in (_outlines, dict):
        try:
            with warnings.catch_warnings(action="ignore"), _aside(trainer.model):
                given = prepared(parts)
                fresh = extract.built_again(type(trainer), given | {"args": args})
                precision.unwrap(extract.models(fresh))
                return fresh, given["model"]
        except Exception as error:  # whatever the class's __init__ raises
            reason = error
    raise InvalidRequest(
        f"A fresh {type(trainer).__name__} cannot be built from the parts of this one: "
        f"{type(reason).__name__}: {first_line(reason)}.",
        BUILD,
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
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
        inside = [module for each in inner for module in modules_of(each)]  # as losses for several datasets
        return [part] if isinstance(part, torch.nn.Module) else inside

    holding = {name: part for name, part in parts.items() if name not in extract.DATASETS and modules_of(part)}
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
    return {name: value for name, value in further.items() if name not in made or not equal(made[name], value)}


def _check_model(trainer: Any, model: Any) -> None:
    """Raise InvalidRequest if the constructor has changed this model, a copy of the Trainer's: it would change that too."""
    ours, others = _facts(trainer.model), _facts(model)
    for name in {**ours, **others}:
        if name not in ours or name not in others or not equal(ours[name], others[name]):
            raise _differs(trainer, f"The model ({name})", "its __init__ changes the model, and would change it again")


def _facts(model: Any) -> dict[str, Any]:
    """Kinds of a model's layers with their numbers and texts, parameters that learn, and its config, by name."""
    facts: dict[str, Any] = {}
    for name, layer in model.named_modules():
        plain = {key: value for key, value in vars(layer).items() if isinstance(value, (int, float, str, type(None)))}
        facts[f"layer {name}"] = type(layer), {key: plain[key] for key in plain.keys() - OF_TRAINING}
    facts |= {name: weight.requires_grad for name, weight in model.named_parameters()}
    config = vars(model.config) if getattr(model, "config", None) is not None else {}
    return facts | {f"config.{key}": config[key] for key in config if key != "use_cache" and not key.startswith("_")}


def _has_hooks(weight: Any) -> bool:
    return bool(weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None))
