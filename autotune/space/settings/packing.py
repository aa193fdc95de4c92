"""Packing: samples of a micro-batch behind each other in one row, without any padding."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

NONE, FLATTENING = NAMES = ("none", "flattening")

COLLATOR = "DataCollatorWithFlattening"
"""The class of transformers that packs; each sample's positions begin at 0, by which attention keeps samples apart."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """No field of TrainingArguments says: the collator does, and ours pads."""
    return NONE


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(data_arguments={"packing": value == FLATTENING})


def _read_back(observed: Observed) -> str:
    packs = type(observed.trainer.data_collator).__name__ == COLLATOR
    return FLATTENING if packs else NONE


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    return None if value == NONE else workload.collating.get("packing", "what its batches can be is not known")


SETTING = Setting(
    name="packing",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="Packed samples lie behind each other instead of being padded to the longest.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
