"""Attention: which implementation computes it."""

from autotune.core.configuration import Value
from autotune.space.settings import precision
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import Context, Effect, Observed, Setting

NAMES = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")

LEAST_CAPABILITY = {"flash_attention_2": (8, 0), "flash_attention_3": (9, 0)}
"""FlashAttention 2 runs on Ampere GPUs and newer, FlashAttention 3 on Hopper (README of Dao-AILab/flash-attention)."""


def _forbidden_precision(value: Value, number_format: Value) -> Exclusion | None:
    """Tensors of float32 reach the kernel unchanged, unless autocast or the weights say otherwise."""
    if value in LEAST_CAPABILITY and number_format in ("fp32", "tf32"):
        text = f"its kernels take numbers of 16 bits only, and those of {number_format} have 32"
        return Exclusion(ExclusionKind.COMBINATION, detail=text)
    return None


def _read_back(observed: Observed) -> str | None:
    implementation = getattr(observed.trainer.model.config, "_attn_implementation", None)
    return None if implementation is None else str(implementation)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    environment, workload = context.environment, context.workload
    if value == workload.attention:
        return None
    if reason := workload.attentions.get(str(value), f"{workload.architecture} was not asked for it"):
        return Exclusion(ExclusionKind.MODEL, detail=reason)
    if environment.is_cpu and value not in ("eager", "sdpa"):
        return Exclusion(ExclusionKind.DEVICE, detail="it trains on GPUs only")
    least = LEAST_CAPABILITY.get(str(value), (0, 0))
    if not environment.is_cpu and (environment.compute_capability or (0, 0)) < least:
        return Exclusion(ExclusionKind.CAPABILITY, {"capability": least[0] + least[1] / 10})
    return None


SETTING = Setting(
    name="attention",
    values=NAMES,
    summary="Fused kernels compute the same attention without writing its whole matrix to memory.",
    from_user=lambda context: context.workload.attention,
    apply=lambda value, environment: Effect(model_arguments={"attn_implementation": value}),
    read_back=_read_back,
    unavailable=_unavailable,
    forbidden={precision.SETTING.name: _forbidden_precision},
)
