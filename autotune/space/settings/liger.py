"""Liger: Triton kernels in the place of a model's norms, activations and losses."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

FIELDS = ON, CHOICE = "use_liger_kernel", "liger_kernel_config"

LOSS = "fused_linear_cross_entropy"
"""Liger's loss that never writes the logits of all tokens to memory; on where nobody says otherwise."""

NAMES = ("none", "kernels", "kernels_and_loss")


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    if not base.get(ON):
        return "none"
    return "kernels_and_loss" if (base.get(CHOICE) or {}).get(LOSS, True) else "kernels"


def _apply(value: Value, environment: Environment) -> Effect:
    if value == "none":
        return Effect({ON: False}, contradicts=(CHOICE,), defaults={CHOICE: None})
    return Effect({ON: True, CHOICE: {LOSS: value == "kernels_and_loss"}})


def _read_back(observed: Observed) -> str:
    """By whose code the running model's modules go forward with, and the model itself: its own loss is made there."""
    model = observed.trainer.model
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # inside an adapter
    within = any(_is_ligers(module) for module in model.modules() if module is not model)
    if _is_ligers(model):
        return "kernels_and_loss"
    return "kernels" if within else "none"


def _is_ligers(module: Any) -> bool:
    """Liger binds its forward to modules that exist already, or makes them of its own classes."""
    forward = getattr(module.forward, "__func__", module.forward)
    # accelerate's mixed precision wraps it, and keeps what it wraps.
    forward = getattr(forward, "__wrapped__", forward)
    owners = (type(module).__module__, getattr(forward, "__module__", None), _original(module))
    return any(str(owner).startswith("liger_kernel") for owner in owners)


def _original(module: Any) -> str | None:
    return getattr(getattr(module, "_original_forward", None), "__module__", None)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "none":
        return None
    if ON not in environment.training_argument_fields:
        return f"this transformers' TrainingArguments has no field {ON}"
    if value == "kernels_and_loss" and workload.task not in ("causal-lm", "custom"):
        return f"its loss is that of the next token, not of {workload.task}"
    return environment.liger or workload.liger.get(str(value), "liger-kernel was not asked for this model")


SETTING = Setting(
    name="liger",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="Fused Triton kernels for norms, activations and positions, and a loss that never holds all logits.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
)
