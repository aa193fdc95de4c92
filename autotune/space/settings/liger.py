"""Liger: Triton kernels instead of a model's own norms, activations and losses."""

from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind, excluded
from autotune.space.settings.rules import first_of, needs_field
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting

FIELDS = ON, CHOICE = "use_liger_kernel", "liger_kernel_config"

LOSS = "fused_linear_cross_entropy"
"""Liger's loss that never writes the logits of all tokens to memory; on by default."""

NAMES = ("none", "kernels", "kernels_and_loss")


def _from_user(context: Context) -> str:
    if not context.arguments.get(ON):
        return "none"
    of_model = context.workload.liger
    is_without_loss = of_model.get("kernels") is None and of_model.get("kernels_and_loss") is not None
    has_loss = (context.arguments.get(CHOICE) or {}).get(LOSS, True) and not is_without_loss
    return "kernels_and_loss" if has_loss else "kernels"


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect({ON: False}, contradicts=(CHOICE,), defaults={CHOICE: None})
    return Effect({ON: True, CHOICE: {LOSS: value == "kernels_and_loss"}})


def _read_back(observed: Observed) -> str:
    """Value that the code of `forward` shows: of the model, where its loss is computed, and of its modules."""
    if _is_ligers(observed.base_model):
        return "kernels_and_loss"
    return "kernels" if any(map(_is_ligers, observed.base_model.modules())) else "none"


def _is_ligers(module: Any) -> bool:
    """True if Liger's forward was bound to this module, or its class is Liger's."""
    forward = getattr(module.forward, "__func__", module.forward)
    # accelerate's mixed precision wraps it, and keeps what it wraps.
    forward = getattr(forward, "__wrapped__", forward)
    original = getattr(module, "_original_forward", None)
    owners = (type(module).__module__, *(getattr(code, "__module__", None) for code in (forward, original)))
    return any(str(owner).startswith("liger_kernel") for owner in owners)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    workload = context.workload
    if workload.user_objects and value == _from_user(context):  # Liger is asked about models of autotune alone
        return excluded(ExclusionKind.TRIED, context.environment.liger)
    if value == "kernels_and_loss" and workload.task not in ("causal-lm", "custom"):
        return Exclusion(ExclusionKind.MODEL, detail=f"its loss is that of the next token, not of {workload.task}")
    reason = workload.liger.get(str(value), "liger-kernel was not asked for this model")
    return excluded(ExclusionKind.TRIED, context.environment.liger) or excluded(ExclusionKind.MODEL, reason)


SETTING = Setting(
    name="liger",
    values=NAMES,
    summary="Fused Triton kernels for norms, activations and positions, and a loss that never holds all logits.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(needs_field(ON), _unavailable),
    costs=Costs(traced=False),
)
