"""Every lever, one file each; search space, arguments, read-back, doctor and report all walk this list."""

from autotune.levers import checkpointing, micro_batch_size, optimizer, pin_memory, precision, workers
from autotune.levers.lever import Lever, Observed, Settings, Work

LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        micro_batch_size.LEVER,
        checkpointing.LEVER,
        precision.LEVER,
        optimizer.LEVER,
        workers.LEVER,
        pin_memory.LEVER,
    )
}

__all__ = ["LEVERS", "Lever", "Observed", "Settings", "Work"]
