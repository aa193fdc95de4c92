"""Attention mask: whether the model gets one that hides nothing."""

from autotune.space.collators import WithoutFullMask
from autotune.space.settings.setting import Effect, Setting

ALWAYS, WHERE_NEEDED = NAMES = ("always", "where_needed")

FIELD = "drop_full_attention_mask"
"""Argument of the data: whether batches are made by `WithoutFullMask`."""

# A model compiled as a whole (compile `default`) leaves attention's mask out with transformers from 5.18 on and torch after
# 2.11; before, it makes one whatever its inputs (`transformers/masking_utils.py`, `is_tracing(None)`; dynamo took
# `torch.compiler.is_exporting()` for true). Compiled in blocks, the mask is made outside of them, in all versions.
SETTING = Setting(
    name="attention_mask",
    values=NAMES,
    summary="Without a mask that hides nothing, no model has to look at it, and compiled ones take attention's fast kernels: "
    "those compiled as a whole only with transformers from 5.18 on and torch from 2.13 on.",
    from_user=lambda context: ALWAYS,  # every collator of transformers makes one
    apply=lambda value, environment: Effect(data_arguments={FIELD: value == WHERE_NEEDED}),
    read_back=lambda observed: WHERE_NEEDED if isinstance(observed.trainer.data_collator, WithoutFullMask) else ALWAYS,
    unavailable=lambda value, context: (
        None if value == ALWAYS else context.workload.collating.get("attention_mask", "its batches are not known")
    ),
    traced=False,
)
