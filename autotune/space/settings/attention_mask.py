"""Attention mask: whether the model gets one that hides nothing."""

from autotune.space.collators import WithoutFullMask
from autotune.space.settings.rules import collated
from autotune.space.settings.setting import Costs, Effect, Setting

ALWAYS, WHERE_NEEDED = NAMES = ("always", "where_needed")

FIELD = "drop_full_attention_mask"
"""Argument of the data: whether batches are made by `WithoutFullMask`."""

# Compiled as a whole (compile `default`), a causal model adds a mask whatever its batch has, because it cannot read whether the
# positions are of packed sequences (`transformers/masking_utils.py`, `find_packed_sequence_indices`); another one leaves it out
# with transformers from 5.18 and torch from 2.13 on. Compiled in blocks, the mask is made outside of them, in all versions.
SETTING = Setting(
    name="attention_mask",
    values=NAMES,
    summary="Without a mask that hides nothing, no model has to look at it, and models compiled in blocks take attention's fast "
    "kernels.",
    apply=lambda value, environment: Effect(data_arguments={FIELD: value == WHERE_NEEDED}),
    read_back=lambda observed: WHERE_NEEDED if isinstance(observed.trainer.data_collator, WithoutFullMask) else ALWAYS,
    unavailable=collated("attention_mask", ALWAYS),
    costs=Costs(traced=False),
)
