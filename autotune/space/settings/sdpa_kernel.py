"""SDPA kernel: which of torch's kernels computes scaled dot-product attention."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings import attention
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

AUTO = "auto"
SWITCHES = {
    "flash": "enable_flash_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "cudnn": "enable_cudnn_sdp",
    "math": "enable_math_sdp",
}
"""Kernel -> the function of torch.backends.cuda that allows it; they hold on a CPU too (torch.nn.attention.sdpa_kernel)."""

NAMES = (AUTO, *SWITCHES)


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """What torch chooses: no field of TrainingArguments says."""
    return AUTO


def _apply(value: Value, environment: Environment) -> Effect:
    if value == AUTO:
        return Effect()
    return Effect(switches={switch: kernel == value for kernel, switch in SWITCHES.items()})


def _read_back(observed: Observed) -> str:
    allowed = [kernel for kernel in SWITCHES if kernel in observed.sdpa_kernels]
    return allowed[0] if len(allowed) == 1 else AUTO


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if environment.is_cpu and value in ("efficient", "cudnn"):
        return "a kernel for GPUs"
    return None


SETTING = Setting(
    name="sdpa_kernel",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="One kernel of torch's attention instead of the one that torch chooses by shapes and masks.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    active_if=(attention.SETTING.name, lambda value: value == "sdpa"),
    traced=False,
)
