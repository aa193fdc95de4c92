"""All settings, one file each; search space, arguments, read-back, doctor and report use this table."""

from importlib import import_module

from autotune.core.configuration import Configuration
from autotune.space.settings.setting import ACCUMULATION, Context, CostChange, Effect, Observed, Setting, WorkFactors

# In this order their values are applied: later ones may overrule what earlier ones set besides.
_FILES = """
    micro_batch_size data_parallel_size fsdp
    checkpointing precision optimizer
    attention sdpa_kernel experts
    workers prefetch_factor persistent_workers pin_memory non_blocking
    logging_nan_inf_filter
    batching packing padding attention_mask
    threads compile compile_backend liger
    cpu_allocator empty_cache_steps expandable_segments
    lora lora_targets quantization zero
"""

SETTINGS: dict[str, Setting] = {name: import_module(f"{__name__}.{name}").SETTING for name in _FILES.split()}

MICRO = "micro_batch_size"


def learning_differences(configuration: Configuration, other: Configuration) -> tuple[str, ...]:
    """Names of the settings, unknown ones among them, by which two configurations learn differently beyond rounding."""
    return tuple(
        name
        for name, value in configuration.values.items()
        if (against := other.values.get(name, value)) != value
        and not (name in SETTINGS and SETTINGS[name].learns_alike(value, against))
    )


__all__ = ["ACCUMULATION", "MICRO", "SETTINGS", "CostChange", "Context", "Effect", "Observed", "Setting", "WorkFactors"]
__all__ += ["learning_differences"]
