"""Batches as the user's training showed them, and the settings that keep the user's value because of it."""

from dataclasses import dataclass

from autotune.core.configuration import Value
from autotune.core.io import Serializable
from autotune.core.reason import Kind, Reason

ALIKE = 1.25
"""Ratio of two contents of a micro-batch, for each sample that was asked for, up to which they are about the same: short batches
at the end of buckets make some per cent, a loader that decides by itself makes the ratio of the sizes, 2 or more."""


class KeptKind(Kind):
    """Kind of reason why a setting keeps the user's value: it always holds, or as OF_LOSSES and OF_NUMERICS say."""

    LOADER = (
        "loader",
        "your loader decides the batch (rows in a micro-batch: {rows:.6g}, in a step: {step_rows:.10g}): micro-batch size and "
        "accumulation are not searched",
    )
    ROWS = (
        "rows",
        "a micro-batch of {size:.0f} holds {rows:.4g} rows instead of {wanted:.4g}: micro-batch size and accumulation are not "
        "searched",
    )
    BATCH = (
        "batch",
        "your loss depends on the samples of a micro-batch ({of_all:.3g} at {rows:.0f}, {of_parts:.3g} at {part_rows:.0f}): its "
        "size is not searched (--allow-loss-difference searches it)",
    )
    MIXED = (
        "mixed",
        "your model's output for a sample depends on the others of its micro-batch: its size is not searched "
        "(--allow-loss-difference searches it)",
    )
    GRADIENTS = (
        "gradients",
        "gradients {detail}, and your optimizer's steps grow with them: micro-batch size and accumulation are not searched "
        "(--allow-loss-difference searches them)",
    )
    SCALE = "scale", "gradients {detail}: with another micro-batch size other ones are clipped"
    BATCH_NORM = (
        "batch_norm",
        "{layers:BatchNorm layer} normalise by the micro-batch: its size changes what is learned",
    )
    REPEATED = (
        "repeated",
        "your stream does not share its samples among workers: several would each yield all of them, and repeat them (let its "
        "__iter__ yield a worker's own, by torch.utils.data.get_worker_info())",
    )
    SHARDS = "shards", "your stream has {most:shard}: workers beyond that yield nothing"
    UNSEEN = (
        "unseen",
        "workers are not searched, as two of them could not read your stream to see whether they share it ({detail})",
    )
    STEPS = (
        "steps",
        "your loader gives {steps:optimizer step} with a micro-batch of {size:.0f} and {own:.0f} with yours: other sizes are not "
        "searched, unless max_steps={own:.0f} is set",
    )


OF_LOSSES = frozenset({KeptKind.BATCH, KeptKind.MIXED, KeptKind.GRADIENTS})
"""Kinds that do not hold for a search that allows other losses."""

OF_NUMERICS = frozenset({KeptKind.SCALE, KeptKind.BATCH_NORM})
"""Kinds that hold only for a search that leaves what is learned as it is."""


@dataclass(frozen=True)
class KeptSetting(Reason):
    """A setting that keeps the user's value, and why."""

    kind: KeptKind
    setting: str = ""

    def allows(self, value: Value, own: Value) -> bool:
        """True for the user's own value, and if only values above `most` train otherwise, for those up to it."""
        most = self.numbers.get("most")
        return value == own or (most is not None and int(value) <= most)


@dataclass(frozen=True)
class Held(Serializable):
    """Contents of a micro-batch for each sample that was asked for, on average over the timed steps."""

    rows: float  #: of its first tensor, as far as they reach the model
    values: float  #: numbers in that tensor
    counts_rows: bool = False  #: speeds count these rows, not the samples that were asked for

    def is_like(self, other: "Held") -> bool:
        """True if both hold about as much for a sample, in rows or, where samples share a row, in values."""
        pairs = ((self.rows, other.rows), (self.values, other.values))
        return any(one and another and 1 / ALIKE <= one / another <= ALIKE for one, another in pairs)
