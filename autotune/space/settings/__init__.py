"""Every lever, one file each; search space, arguments, read-back, doctor and report all walk this list."""

from autotune.core.configuration import Configuration
from autotune.space.settings import (
    attention,
    attention_mask,
    batching,
    checkpointing,
    compile,
    compile_backend,
    cpu_allocator,
    data_parallel_size,
    empty_cache_steps,
    expandable_segments,
    experts,
    fsdp,
    garbage_threshold,
    liger,
    logging_nan_inf_filter,
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
    sdpa_kernel,
    threads,
    workers,
    zero,
)
from autotune.space.settings.setting import ACCUMULATION, Change, Lever, Observed, Settings, Work

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
        sdpa_kernel.LEVER,
        experts.LEVER,
        workers.LEVER,
        prefetch_factor.LEVER,
        persistent_workers.LEVER,
        pin_memory.LEVER,
        non_blocking.LEVER,
        logging_nan_inf_filter.LEVER,
        batching.LEVER,
        packing.LEVER,
        padding.LEVER,
        attention_mask.LEVER,
        threads.LEVER,
        compile.LEVER,
        compile_backend.LEVER,
        liger.LEVER,
        cpu_allocator.LEVER,
        empty_cache_steps.LEVER,
        expandable_segments.LEVER,
        garbage_threshold.LEVER,
        lora.LEVER,
        lora_targets.LEVER,
        quantization.LEVER,
        zero.LEVER,
    )
}

MICRO = micro_batch_size.LEVER.name


def learning_differences(one: Configuration, other: Configuration) -> tuple[str, ...]:
    """Names of the levers by which the two configurations learn differently, beyond rounding.

    A lever that this version does not know counts where its values differ.
    """
    there = other.values
    return tuple(
        name
        for name, value in one.values.items()
        if name in there
        and value != there[name]
        and not (name in LEVERS and LEVERS[name].learns_alike(value, there[name]))
    )


__all__ = [
    "ACCUMULATION",
    "LEVERS",
    "MICRO",
    "Change",
    "Lever",
    "Observed",
    "Settings",
    "Work",
    "learning_differences",
]
