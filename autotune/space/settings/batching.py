"""Batching: which samples form a batch, and in which order."""

from autotune.core import Environment, Value
from autotune.space.settings.setting import Context, Effect, Observed, Setting, one_of

RANDOM, GROUPED, SEQUENTIAL, REBALANCED = NAMES = ("random", "group_by_length", "sequential", "batch_rebalance")

STRATEGY, OLDER = "train_sampling_strategy", "group_by_length"
"""The field of TrainingArguments, and the earlier one, which has two of the strategies."""


def _from_user(context: Context) -> str:
    strategy = context.arguments.get(STRATEGY)
    if strategy is not None:
        return one_of(*NAMES)(getattr(strategy, "value", strategy))
    return GROUPED if context.arguments.get(OLDER) else RANDOM


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({OLDER: value == GROUPED} if OLDER in environment.training_argument_fields else {STRATEGY: value})


def _read_back(observed: Observed) -> str:
    strategy = getattr(observed.trainer.args, STRATEGY, None)
    if strategy is not None:
        return str(getattr(strategy, "value", strategy))
    return GROUPED if getattr(observed.trainer.args, OLDER, False) else RANDOM


def _unavailable(value: Value, context: Context) -> str | None:
    fields = context.environment.training_argument_fields
    if value == RANDOM:
        return None
    if STRATEGY not in fields and not (value == GROUPED and OLDER in fields):
        return "this transformers has no such strategy"
    if value == GROUPED and not context.workload.longest:
        return "all samples have the same length, or it is not known"
    if value == REBALANCED and context.environment.device_count < 2:
        return "it balances batches between ranks, and there is one"
    return None


SETTING = Setting(
    name="batching",
    values=NAMES,
    changes={"speed", "numerics"},
    summary="Samples of like length together need less padding, and come in another order.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
