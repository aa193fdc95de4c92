"""The micro-batch size: how many samples one forward and backward take; accumulation follows from the global batch."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, whole_number
from autotune.space.tensor_cores import SMALLEST

GENERATION = "steps_per_generation"
"""TRL's field of the Trainers that generate for so many micro-steps at once (GRPO, RLOO, SDFT); so many are a loader's batch."""


def divisors(global_batch_size: int, multiple_of: int = 1) -> tuple[int, ...]:
    """Every micro-batch size that makes the global batch exact, ascending; optionally only multiples of k."""
    small = [size for size in range(1, int(global_batch_size**0.5) + 1) if global_batch_size % size == 0]
    every = sorted({*small, *(global_batch_size // size for size in small)})
    return tuple(size for size in every if size % multiple_of == 0)


def tiled(global_batch_size: int, multiple: int) -> tuple[int, ...]:
    """Divisors that are multiples of this; of its halves, down to 8, where there are none; else every divisor."""
    while multiple >= SMALLEST:
        if found := divisors(global_batch_size, multiple):
            return found
        multiple //= 2
    return divisors(global_batch_size)


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> int:
    return int(base.get("per_device_train_batch_size", 8))


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({"per_device_train_batch_size": value})


def _read_back(observed: Observed) -> int:
    loader, args = observed.trainer.callback_handler.train_dataloader, observed.trainer.args
    together = getattr(args, GENERATION, None) or 1
    # accelerate's loader knows its size over all ranks; a caller's own plain one its own.
    if known := getattr(loader, "total_batch_size", None):
        return int(known) // int(getattr(args, "world_size", 1)) // together
    known = getattr(loader, "batch_size", None)
    return int(known) // together if known else int(args.train_batch_size)


SETTING = Setting(
    name="micro_batch_size",
    values=(),
    changes=frozenset({"speed", "memory"}),
    summary="Samples in one forward and backward: larger fills the device better until memory or caches run out.",
    read=whole_number(1),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    needs_at_least_as_much=lambda one, other: int(one) >= int(other),
    ordered=True,
)
