"""Every lever, one file each; search space, arguments, read-back, doctor and report all walk this list."""

from autotune.levers import (
    attention,
    checkpointing,
    compile,
    compile_backend,
    cpu_allocator,
    data_parallel_size,
    empty_cache_steps,
    expandable_segments,
    fsdp,
    garbage_threshold,
    liger,
    micro_batch_size,
    optimizer,
    persistent_workers,
    pin_memory,
    precision,
    prefetch_factor,
    threads,
    workers,
)
from autotune.levers.lever import ACCUMULATION, Change, Lever, Observed, Settings, Work

LEVERS: dict[str, Lever] = {
    lever.name: lever
    for lever in (
        micro_batch_size.LEVER,
        data_parallel_size.LEVER,
        fsdp.LEVER,
        checkpointing.LEVER,
        precision.LEVER,
        optimizer.LEVER,
        attention.LEVER,
        workers.LEVER,
        prefetch_factor.LEVER,
        persistent_workers.LEVER,
        pin_memory.LEVER,
        threads.LEVER,
        compile.LEVER,
        compile_backend.LEVER,
        liger.LEVER,
        cpu_allocator.LEVER,
        empty_cache_steps.LEVER,
        expandable_segments.LEVER,
        garbage_threshold.LEVER,
    )
}

MICRO = micro_batch_size.LEVER.name

__all__ = ["ACCUMULATION", "LEVERS", "MICRO", "Change", "Lever", "Observed", "Settings", "Work"]
