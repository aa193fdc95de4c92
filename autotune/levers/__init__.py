"""Every lever, one file each; search space, arguments, read-back, doctor and report all walk this list."""

from autotune.levers import (
    attention,
    batching,
    checkpointing,
    experts,
    lora,
    lora_targets,
    micro_batch_size,
    non_blocking,
    optimizer,
    packing,
    padding,
    persistent_workers,
    pin_memory,
    precision,
    prefetch_factor,
    quantization,
    threads,
    workers,
    zero,
)
from autotune.levers.lever import Lever, Observed, Settings, Work

LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        micro_batch_size.LEVER,
        checkpointing.LEVER,
        precision.LEVER,
        optimizer.LEVER,
        attention.LEVER,
        experts.LEVER,
        workers.LEVER,
        prefetch_factor.LEVER,
        persistent_workers.LEVER,
        pin_memory.LEVER,
        non_blocking.LEVER,
        batching.LEVER,
        packing.LEVER,
        padding.LEVER,
        threads.LEVER,
        lora.LEVER,
        lora_targets.LEVER,
        quantization.LEVER,
        zero.LEVER,
    )
}

MICRO = micro_batch_size.LEVER.name

__all__ = ["LEVERS", "MICRO", "Lever", "Observed", "Settings", "Work"]
