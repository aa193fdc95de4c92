"""Every setting, one file each; search space, arguments, read-back, doctor and report all walk this list."""

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
from autotune.space.settings.setting import ACCUMULATION, Change, Effect, Observed, Setting, Work

SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        micro_batch_size.SETTING,
        data_parallel_size.SETTING,
        fsdp.SETTING,
        checkpointing.SETTING,
        precision.SETTING,
        optimizer.SETTING,
        attention.SETTING,
        sdpa_kernel.SETTING,
        experts.SETTING,
        workers.SETTING,
        prefetch_factor.SETTING,
        persistent_workers.SETTING,
        pin_memory.SETTING,
        non_blocking.SETTING,
        logging_nan_inf_filter.SETTING,
        batching.SETTING,
        packing.SETTING,
        padding.SETTING,
        attention_mask.SETTING,
        threads.SETTING,
        compile.SETTING,
        compile_backend.SETTING,
        liger.SETTING,
        cpu_allocator.SETTING,
        empty_cache_steps.SETTING,
        expandable_segments.SETTING,
        garbage_threshold.SETTING,
        lora.SETTING,
        lora_targets.SETTING,
        quantization.SETTING,
        zero.SETTING,
    )
}

MICRO = micro_batch_size.SETTING.name


def learning_differences(one: Configuration, other: Configuration) -> tuple[str, ...]:
    """Names of the settings by which the two configurations learn differently, beyond rounding.

    A setting that this version does not know counts where its values differ.
    """
    there = other.values
    return tuple(
        name
        for name, value in one.values.items()
        if name in there
        and value != there[name]
        and not (name in SETTINGS and SETTINGS[name].learns_alike(value, there[name]))
    )


__all__ = [
    "ACCUMULATION",
    "SETTINGS",
    "MICRO",
    "Change",
    "Setting",
    "Observed",
    "Effect",
    "Work",
    "learning_differences",
]
