"""Padding: batches of text filled up to a multiple of n tokens."""

from autotune.core import Environment, Value
from autotune.space.settings import packing
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import collated
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting

NONE = "none"
"""No padding beyond the longest sample of the batch."""

NAMES = (NONE, "8", "16", "32", "64", "128")
"""Tensor cores take shapes in multiples of 8 values of sixteen bits, an A100's 64 (NVIDIA, Deep Learning Performance
guide, "Tensor Core requirements"); coarser ones leave fewer shapes to compile kernels for."""


def _from_user(context: Context) -> str:
    """Padding of the user's collator; autotune's pads to the longest."""
    return str(context.workload.pad_to_multiple_of or NONE)


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(data_arguments={"pad_to_multiple_of": None if value == NONE else int(value)})


def _read_back(observed: Observed) -> str:
    collator = observed.trainer.data_collator
    return str(getattr(getattr(collator, "inner", collator), "pad_to_multiple_of", None) or NONE)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if value == _from_user(context):
        return None
    if reason := collated("pad_to_multiple_of")(value, context):
        return reason
    length = context.workload.sequence_length
    if value != NONE and length is not None and length % int(value):
        return Exclusion(ExclusionKind.LENGTH, {"tokens": length})
    return None


def _needs_at_least_as_much(value: Value, other: Value) -> bool:
    """A multiple of a multiple pads every batch at least as far."""
    tokens, fewer = (1 if multiple == NONE else int(multiple) for multiple in (value, other))
    return tokens % fewer == 0


SETTING = Setting(
    name="padding",
    values=NAMES,
    summary="Rows of a round number of tokens suit matrix units and kernels, at the price of more padding.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    costs=Costs(_needs_at_least_as_much),
    active_if=(packing.SETTING.name, lambda value: value == packing.NONE),
)
