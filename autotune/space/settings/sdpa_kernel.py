"""SDPA kernel: which of torch's kernels computes scaled dot-product attention."""

from autotune.core import Environment, Value
from autotune.space.settings import attention
from autotune.space.settings.rules import needs_gpu
from autotune.space.settings.setting import Costs, Effect, Observed, Setting

AUTO = "auto"
"""Choice by torch."""
SWITCHES = {
    "flash": "enable_flash_sdp",
    "efficient": "enable_mem_efficient_sdp",
    "cudnn": "enable_cudnn_sdp",
    "math": "enable_math_sdp",
}
"""Kernel -> the function of torch.backends.cuda that allows it; they hold on a CPU too (torch.nn.attention.sdpa_kernel)."""

NAMES = (AUTO, *SWITCHES)


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(switches={} if value == AUTO else {switch: value == name for name, switch in SWITCHES.items()})


def _read_back(observed: Observed) -> str:
    allowed = [kernel for kernel in SWITCHES if kernel in observed.sdpa_kernels]
    return allowed[0] if len(allowed) == 1 else AUTO


SETTING = Setting(
    name="sdpa_kernel",
    values=NAMES,
    summary="One kernel of torch's attention instead of the one that torch chooses by shapes and masks.",
    apply=_apply,
    read_back=_read_back,
    unavailable=lambda value, context: (
        needs_gpu("a kernel for GPUs")(value, context) if value in ("efficient", "cudnn") else None
    ),
    active_if=(attention.SETTING.name, lambda value: value == "sdpa"),
    costs=Costs(traced=False),
)
