"""Experts: which implementation computes a mixture of experts."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

NONE = "none"
"""What a model without experts has."""

NAMES = ("eager", "batched_mm", "grouped_mm")
"""Those that come with transformers and torch. Its others fetch their kernels from the hub when they first run
(`transformers.integrations.hub_kernels`), which no probe should."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """What the model takes where nobody chose: no field of TrainingArguments says."""
    return workload.expert or NONE


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(model_arguments={} if value == NONE else {"experts_implementation": value})


def _read_back(observed: Observed) -> str | None:
    """None for a model without experts: its config has a word for them all the same, which means nothing there."""
    model = observed.trainer.model
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # inside PEFT's
    own = getattr(model.config, "_experts_implementation", None)
    chooses = getattr(type(model), "_can_set_experts_implementation", lambda: False)
    return str(own) if own is not None and chooses() else None


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == (workload.expert or NONE):
        return None
    if workload.user_objects:
        return "the model comes built from your model_init, which chooses how its experts are computed"
    if not workload.expert:
        return f"{workload.architecture} has no experts whose implementation can be chosen"
    return workload.experts.get(str(value), f"{workload.architecture} was not asked for it")


SETTING = Setting(
    name="experts",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="Grouped and batched products compute all chosen experts at once instead of one after the other.",
    read=one_of(NONE, *NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
