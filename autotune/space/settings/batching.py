"""Batching: which samples form a batch, and in which order."""

from collections.abc import Mapping
from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import NO_MEMORY, Context, Effect, Learning, Setting, one_of

RANDOM, GROUPED, SEQUENTIAL, REBALANCED = NAMES = ("random", "group_by_length", "sequential", "batch_rebalance")

STRATEGY, OLDER = "train_sampling_strategy", "group_by_length"
"""The field of TrainingArguments, and the earlier one, which has two of the strategies."""


def strategy(arguments: Mapping[str, Any]) -> str:
    """The value that training arguments have."""
    if (stated := arguments.get(STRATEGY)) is not None:
        return one_of(*NAMES)(getattr(stated, "value", stated))
    return GROUPED if arguments.get(OLDER) else RANDOM


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({OLDER: value == GROUPED} if OLDER in environment.training_argument_fields else {STRATEGY: value})


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    fields = context.environment.training_argument_fields
    if value == RANDOM:
        return None
    if STRATEGY not in fields and not (value == GROUPED and OLDER in fields):
        return Exclusion(ExclusionKind.LIBRARY, detail="this transformers has no such strategy")
    if value == GROUPED and not context.workload.longest:
        return Exclusion(ExclusionKind.DATA, detail="all samples have the same length, or it is not known")
    if value == REBALANCED and context.environment.device_count < 2:
        return Exclusion(ExclusionKind.DEVICE, detail="it balances batches between ranks, and there is one")
    return None


SETTING = Setting(
    name="batching",
    values=NAMES,
    costs=NO_MEMORY,
    learning=Learning(),
    summary="Samples of like length together need less padding, and come in another order.",
    from_user=lambda context: strategy(context.arguments),
    apply=_apply,
    read_back=lambda observed: strategy(vars(observed.trainer.args)),
    unavailable=_unavailable,
)
