"""Batching: which samples come together in a batch, and in which order."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

RANDOM, GROUPED, SEQUENTIAL, REBALANCED = NAMES = ("random", "group_by_length", "sequential", "batch_rebalance")

STRATEGY, OLDER = "train_sampling_strategy", "group_by_length"
"""The field of TrainingArguments, and the earlier one, which knows two of the strategies."""


def _is_older(environment: Environment) -> bool:
    return OLDER in environment.training_argument_fields


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    own = base.get(STRATEGY)
    if own is not None:
        return one_of(*NAMES)(getattr(own, "value", own))
    return GROUPED if base.get(OLDER) else RANDOM


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect({OLDER: value == GROUPED} if _is_older(environment) else {STRATEGY: value})


def _read_back(observed: Observed) -> str:
    own = getattr(observed.trainer.args, STRATEGY, None)
    if own is not None:
        return str(getattr(own, "value", own))
    return GROUPED if getattr(observed.trainer.args, OLDER, False) else RANDOM


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == RANDOM:
        return None
    if STRATEGY not in environment.training_argument_fields and not (value == GROUPED and _is_older(environment)):
        return "this transformers has no such strategy"
    if value == GROUPED and not workload.longest:
        return "all samples have the same length, or it is not known"
    if value == REBALANCED and environment.device_count < 2:
        return "it balances batches between ranks, and there is one"
    return None


SETTING = Setting(
    name="batching",
    values=NAMES,
    changes=frozenset({"speed", "numerics"}),
    summary="Samples of like length together need less padding, and come in another order.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
)
