"""What the user's own training showed of its batches, and the settings that keep the user's value because of it."""

from dataclasses import dataclass

from autotune.core.io import Serializable
from autotune.core.reason import Kind, Reason

ALIKE = 1.25
"""Ratio of two contents of a micro-batch, for each sample that was asked for, up to which they are about the same: short batches
at the end of buckets make some per cent, a loader that decides by itself makes the ratio of the sizes, 2 or more."""


class KeptKind(Kind):
    """Kind of reason why a setting keeps the user's value. It always holds, or for those of OF_NUMERICS with `keep_numerics`."""

    LOADER = (
        "loader",
        "your loader decides the batch (rows in a micro-batch: {rows:.4g}, in a step: {step_rows:.4g}): micro-batch size and "
        "accumulation are not searched",
    )


OF_NUMERICS: frozenset[KeptKind] = frozenset()
"""Kinds that hold only for a search that leaves what is learned as it is."""


@dataclass(frozen=True)
class KeptSetting(Reason):
    """A setting that keeps the user's value, and why."""

    kind: KeptKind
    setting: str = ""


@dataclass(frozen=True)
class Held(Serializable):
    """What a micro-batch holds for each sample that was asked for, on average over the timed steps."""

    rows: float  #: of its first tensor, as far as they reach the model
    values: float  #: numbers in that tensor
    counts_rows: bool = False  #: speeds count these rows, not the samples that were asked for

    def is_like(self, other: "Held") -> bool:
        """True if both hold about as much for a sample, in rows or, where samples share a row, in values."""
        pairs = ((self.rows, other.rows), (self.values, other.values))
        return any(one and another and 1 / ALIKE <= one / another <= ALIKE for one, another in pairs)
