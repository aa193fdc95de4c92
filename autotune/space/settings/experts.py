"""Experts: which implementation computes a mixture of experts."""

from typing import Any

from autotune.core.configuration import Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind, excluded
from autotune.space.settings.setting import Context, Effect, Setting, one_of

NONE = "none"
"""Value for a model without experts."""

NAMES = ("eager", "batched_mm", "grouped_mm")
"""Implementations that come with transformers and torch. The others fetch their kernels from the hub when they first run
(`transformers.integrations.hub_kernels`), which no probe should."""


def implementation(model: Any) -> str | None:
    """The one that computes this model's experts; None without experts: its config names one all the same."""
    name = getattr(model.config, "_experts_implementation", None)
    can_choose = getattr(type(model), "_can_set_experts_implementation", lambda: False)
    return str(name) if name is not None and can_choose() else None


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    workload = context.workload
    if value == (workload.expert or NONE):
        return None
    if not workload.expert:
        text = f"{workload.architecture} has no experts with several implementations"
        return Exclusion(ExclusionKind.MODEL, detail=text)
    reason = workload.experts.get(str(value), f"{workload.architecture} was not asked for it")
    return excluded(ExclusionKind.MODEL, reason)


SETTING = Setting(
    name="experts",
    values=NAMES,
    summary="Grouped and batched products compute all chosen experts at once instead of one after the other.",
    read=one_of(NONE, *NAMES),
    from_user=lambda context: context.workload.expert or NONE,
    apply=lambda value, environment: Effect(model_arguments={} if value == NONE else {"experts_implementation": value}),
    read_back=lambda observed: implementation(observed.base_model),
    unavailable=_unavailable,
)
