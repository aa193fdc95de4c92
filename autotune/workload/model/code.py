"""Code that decides what is trained, in classes that a child imports: replaced there, it would be missing in the child."""

import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.workload.model.pickling import is_importable

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
    """Result of `code_of` for all classes of Trainers and layers in this process."""
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
