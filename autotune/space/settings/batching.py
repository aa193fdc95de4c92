"""Batching: which samples form a batch, and in which order."""

from collections.abc import Mapping
from typing import Any

from autotune.core import Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.setting import NO_MEMORY, Context, Effect, Learning, Setting, one_of

RANDOM, GROUPED, SEQUENTIAL, REBALANCED = NAMES = ("random", "group_by_length", "sequential", "batch_rebalance")

FIELD = "train_sampling_strategy"


def strategy(arguments: Mapping[str, Any]) -> str:
    """The value that training arguments have."""
    stated = arguments.get(FIELD)
    return RANDOM if stated is None else one_of(*NAMES)(getattr(stated, "value", stated))


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if value == RANDOM:
        return None
    if FIELD not in context.environment.training_argument_fields:
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
    apply=lambda value, environment: Effect({FIELD: value}),
    read_back=lambda observed: strategy(vars(observed.trainer.args)),
    unavailable=_unavailable,
)
