"""Attention: which implementation computes it."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings import precision
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

NAMES = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")

LEAST_CAPABILITY = {"flash_attention_2": (8, 0), "flash_attention_3": (9, 0)}
"""FlashAttention 2 runs on Ampere GPUs and newer, FlashAttention 3 on Hopper (README of Dao-AILab/flash-attention)."""


def _beside_precision(value: Value, of: Value) -> str | None:
    """Tensors of float32 come to the kernel as they are, unless autocast or the weights say otherwise."""
    if value in LEAST_CAPABILITY and of in ("fp32", "tf32"):
        return f"its kernels take numbers of 16 bits only, and those of {of} have 32"
    return None


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """What the model takes where nobody chose: no field of TrainingArguments says."""
    return workload.attention


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(model_arguments={"attn_implementation": value})


def _read_back(observed: Observed) -> str | None:
    own = getattr(observed.trainer.model.config, "_attn_implementation", None)
    return None if own is None else str(own)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == workload.attention:
        return None
    if workload.user_objects:
        return "the model comes built from your model_init, which chooses its attention"
    if reason := workload.attentions.get(str(value), f"{workload.architecture} was not asked for it"):
        return reason
    if environment.is_cpu and value not in ("eager", "sdpa"):
        return "it trains on GPUs only"
    least = LEAST_CAPABILITY.get(str(value), (0, 0))
    if not environment.is_cpu and (environment.compute_capability or (0, 0)) < least:
        return f"needs compute capability {least[0]}.{least[1]}"
    return None


SETTING = Setting(
    name="attention",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="Fused kernels compute the same attention without writing its whole matrix to memory.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    forbidden={precision.SETTING.name: _beside_precision},
)
