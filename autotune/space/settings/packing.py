"""Packing: samples of a micro-batch behind each other in one row, without any padding."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Lever, Observed, Settings, one_of

NONE, FLATTENING = NAMES = ("none", "flattening")

COLLATOR = "DataCollatorWithFlattening"
"""The class of transformers that packs; each sample's positions begin at 0, by which attention keeps samples apart."""


def _own(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """No field of TrainingArguments says: the collator does, and ours pads."""
    return NONE


def _apply(value: Value, environment: Environment) -> Settings:
    return Settings(data_arguments={"packing": value == FLATTENING})


def _read_back(observed: Observed) -> str:
    packs = type(observed.trainer.data_collator).__name__ == COLLATOR
    return FLATTENING if packs else NONE


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    return None if value == NONE else workload.collating.get("packing", "what its batches can be is not known")


LEVER = Lever(
    name="packing",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="Packed samples lie behind each other instead of being padded to the longest.",
    read=one_of(*NAMES),
    own=_own,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
