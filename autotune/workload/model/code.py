"""Code that decides what is trained, in classes that a child imports: replaced there, it would be missing in the child."""

import dis
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.workload.model.pickling import is_importable
from autotune.workload.references import content, function_of, of_library

DECIDING = (
    *("compute_loss", "training_step", "_inner_training_loop", "_prepare_inputs"),
    *("get_train_dataloader", "_get_train_sampler", "get_batch_samples"),
    *("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler"),
)
"""Methods of a Trainer. Loggers replace others (`train`, `log`), and change nothing that is learned."""


def code_of(trainer_classes: Iterable[type], layers: Iterable[Any]) -> dict[str, str]:
    """Method -> digest of its code, of these classes of Trainers, and layers or their classes, as far as a child imports them."""
    methods = {
        (kind, name) for each in trainer_classes for kind in each.__mro__ for name in DECIDING if name in vars(kind)
    }
    methods |= {(layer if isinstance(layer, type) else type(layer), "forward") for layer in layers}
    return {
        f"{kind.__module__}.{kind.__qualname__}.{name}": _digest(getattr(kind, name, None))
        for kind, name in methods
        if kind.__module__ != "__main__" and is_importable(kind.__module__) and _by_name(kind) is kind
    }


def loaded_code() -> dict[str, str]:
    """The same of all classes of Trainers and layers in this process."""
    from torch.nn import Module
    from transformers import Trainer

    return code_of(_subclasses(Trainer), _subclasses(Module))


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def check_code(sent: dict[str, str], trainer_class: type, model: Any) -> None:
    """Raise InvalidRequest if the same methods of these differ from the result of `code_of` in the caller's process."""
    here = code_of({trainer_class}, model.modules())
    if missing := sorted(name for name, digest in sent.items() if here.get(name) != digest):
        raise InvalidRequest(
            f"{missing[0]} was replaced in your process, and trials would run without that.",
            "Put what replaces it into a subclass, or set it on the Trainer or the model.",
        )


THAWS = ("requires_grad", "requires_grad_", "unfreeze")
GROWS = (*THAWS, "add_param_group", "resize_token_embeddings")
"""Names by which code makes frozen weights learn, or adds some, in the course of a training."""


def grows(parts: Iterable[Any]) -> str:
    """`Thaw.on_step_begin uses requires_grad`, of the user's own classes and functions and those that they call; else empty.

    parts: functions and classes; constructors have run before a training.
    """
    stack, seen = list(parts), set[int]()
    while stack:
        part = function_of(stack.pop(0))
        if id(part) in seen or of_library(getattr(part, "__module__", None) or ""):
            continue
        seen.add(id(part))
        if isinstance(part, type):
            stack += [
                member for base in part.__mro__[:-1] if not of_library(base.__module__) for member in _methods(base)
            ]
        elif isinstance(part, types.FunctionType):
            codes = list(_codes(part))
            used = [step for code in codes for step in dis.get_instructions(code) if isinstance(step.argval, str)]
            names = {step.argval for step in used}
            # Who counts weights reads that attribute.
            if found := [step.argval for step in used if step.argval in GROWS and not _reads_flag(step)]:
                return f"{part.__qualname__.rpartition('<locals>.')[2]} uses {found[0]}"
            cells = map(content, part.__closure__ or ())
            called = [*(part.__globals__.get(name) for name in names), *cells]
            stack += [each for each in called if isinstance(each, (types.FunctionType, type))]
    return ""


def _methods(kind: type) -> list[Any]:
    return [function_of(member) for name, member in vars(kind).items() if name != "__init__"]


def _reads_flag(step: dis.Instruction) -> bool:
    return step.argval == THAWS[0] and step.opname == "LOAD_ATTR"


def _by_name(kind: type) -> Any:
    """Object in the class's module at its name in a child; None for a class made in a function, which is sent by value."""
    value: Any = sys.modules[kind.__module__]
    for name in kind.__qualname__.split("."):
        value = getattr(value, name, None)
    return value


def _digest(method: Any) -> str:
    facts = repr([(code.co_code, code.co_names, code.co_varnames) for code in _codes(method)])
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _codes(method: Any) -> Iterator[types.CodeType]:
    """Code of the function, of functions that it wraps, and of functions within them."""
    while method is not None:
        stack = [code] if isinstance(code := getattr(method, "__code__", None), types.CodeType) else []
        while stack:
            yield (code := stack.pop())
            stack += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        method = getattr(method, "__wrapped__", None)
