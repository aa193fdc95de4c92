"""Packing: samples of a micro-batch one after another in one row, without any padding."""

from autotune.space.settings.rules import collated
from autotune.space.settings.setting import Effect, Learning, Setting

NONE, FLATTENING = NAMES = ("none", "flattening")

COLLATOR = "DataCollatorWithFlattening"
"""The class of transformers that packs; each sample's positions begin at 0, by which attention keeps samples apart."""


SETTING = Setting(
    name="packing",
    values=NAMES,
    learning=Learning(),
    summary="Packed samples follow one another in one row instead of being padded to the longest.",
    apply=lambda value, environment: Effect(data_arguments={"packing": value == FLATTENING}),
    read_back=lambda observed: FLATTENING if type(observed.trainer.data_collator).__name__ == COLLATOR else NONE,
    unavailable=collated("packing", NONE),
)
