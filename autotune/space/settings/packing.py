"""Packing: samples of a micro-batch one after another in one row, without any padding."""

from autotune.space.settings.setting import Effect, Setting

NONE, FLATTENING = NAMES = ("none", "flattening")

COLLATOR = "DataCollatorWithFlattening"
"""The class of transformers that packs; each sample's positions begin at 0, by which attention keeps samples apart."""

SETTING = Setting(
    name="packing",
    values=NAMES,
    changes={"speed", "memory", "numerics"},
    summary="Packed samples follow one another in one row instead of being padded to the longest.",
    from_user=lambda context: NONE,  # the collator decides, and the default one pads
    apply=lambda value, environment: Effect(data_arguments={"packing": value == FLATTENING}),
    read_back=lambda observed: FLATTENING if type(observed.trainer.data_collator).__name__ == COLLATOR else NONE,
    unavailable=lambda value, context: (
        None if value == NONE else context.workload.collating.get("packing", "its batches are not known")
    ),
)
