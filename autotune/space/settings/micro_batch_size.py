"""The micro-batch size: how many samples one forward and backward take; accumulation follows from the global batch."""

import math

from autotune.core.request import LARGEST_GLOBAL_BATCH
from autotune.space.settings.setting import Costs, Observed, field_setting, whole_number
from autotune.space.tensor_cores import SMALLEST

GENERATION = "steps_per_generation"
"""TRL's field of Trainers that generate for several micro-steps at once (GRPO, RLOO, SDFT), which are one batch of the loader."""


def divisors(global_batch_size: int, multiple_of: int = 1) -> tuple[int, ...]:
    """The micro-batch sizes that make the global batch exact, ascending; optionally only multiples of k."""
    small = [size for size in range(1, int(global_batch_size**0.5) + 1) if global_batch_size % size == 0]
    sizes = sorted({*small, *(global_batch_size // size for size in small)})
    return tuple(size for size in sizes if size % multiple_of == 0)


def steps_of(epochs: float, batches: int, accumulation: int) -> int:
    """Optimizer steps of a training, as `Trainer.set_initial_training_values` counts them. batches: of a rank's epoch."""
    return math.ceil(float(epochs) * max(1, -(-batches // accumulation)))


def tiled(global_batch_size: int, multiple: int) -> tuple[int, ...]:
    """Divisors that are multiples of this; of its halves, down to 8, if there are none; else every divisor."""
    while multiple >= SMALLEST:
        if sizes := divisors(global_batch_size, multiple):
            return sizes
        multiple //= 2
    return divisors(global_batch_size)


def _read_back(observed: Observed) -> int | None:
    """The loader's batch size; None if it does not say: arguments are not what it does."""
    loader, args = observed.loader, observed.trainer.args
    micro_steps = getattr(args, GENERATION, None) or 1
    # accelerate's loader has the size over all ranks, a plain one of the user's its own.
    if size := getattr(loader, "total_batch_size", None):
        return int(size) // int(getattr(args, "world_size", 1)) // micro_steps
    size = getattr(loader, "batch_size", None)
    return int(size) // micro_steps if size else None


SETTING = field_setting(
    name="micro_batch_size",
    field="per_device_train_batch_size",
    values=(),
    default=8,
    summary="Samples in one forward and backward: larger fills the device better until memory or caches run out.",
    read=whole_number(1, LARGEST_GLOBAL_BATCH),
    read_back=_read_back,
    costs=Costs(lambda value, other: int(value) >= int(other)),
    ordered=True,
)
