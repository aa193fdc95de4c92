"""The attention mask: whether the model is handed one that hides nothing."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.collators import WithoutFullMask
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

ALWAYS, WHERE_NEEDED = NAMES = ("always", "where_needed")

FIELD = "drop_full_attention_mask"
"""Argument of the data: whether batches are made by `WithoutFullMask`."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """No field of TrainingArguments says: every collator of transformers makes one."""
    return ALWAYS


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(data_arguments={FIELD: value == WHERE_NEEDED})


def _read_back(observed: Observed) -> str:
    return WHERE_NEEDED if isinstance(observed.trainer.data_collator, WithoutFullMask) else ALWAYS


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    return None if value == ALWAYS else workload.collating.get("attention_mask", "what its batches can be is not known")


SETTING = Setting(
    name="attention_mask",
    values=NAMES,
    changes=frozenset({"speed", "memory"}),
    summary="Without a mask that hides nothing, compiled models take attention's fast kernels, and no model has to look at it.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    traced=False,
)
