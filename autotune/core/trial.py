"""Trial: a configuration and its measurements."""

from dataclasses import dataclass, replace
from functools import cached_property

from autotune.core.configuration import Configuration
from autotune.core.interval import Interval
from autotune.core.measurement import Measurement, Outcome, pooled


@dataclass(frozen=True)
class Trial:
    """A configuration, its probe's measurement, and the measurements of its rounds: each time that it was measured again."""

    number: int  #: 0 is the baseline
    configuration: Configuration  #: the values tried
    measurement: Measurement  #: of its probe
    confirmations: tuple[Measurement, ...] = ()  #: of its rounds; the first with whole steps
    disqualified_reason: str = ""  #: reason why it cannot win although it fits

    def with_training_steps(self, training_steps: int | None) -> "Trial":
        """The same trial for a run of `training_steps` steps."""
        probe, *rounds = (replace(measured, training_steps=training_steps) for measured in self.measurements)
        return replace(self, measurement=probe, confirmations=tuple(rounds))

    @cached_property
    def final(self) -> Measurement:
        """The measurement that counts: the first that failed, the probe's too; else all rounds pooled, or the probe."""
        if not self.confirmations:
            return self.measurement
        failed = (measured for measured in self.measurements if not measured.feasible)
        return next(failed, None) or pooled(self.confirmations)

    @property
    def confirmed(self) -> bool:
        """True if it was measured again, and completed each time. A proven speed-up is a separate question."""
        return bool(self.confirmations) and all(measured.feasible for measured in self.measurements)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The numbers, from 1, of its rounds: all trials have the same weights and samples in rounds of one number."""
        return tuple(measured.round or place for place, measured in enumerate(self.confirmations, 1))

    @property
    def feasible(self) -> bool:
        """True if it completed within the memory allowed, each time."""
        return self.final.feasible

    @property
    def lacked_memory(self) -> bool:
        """True if it ran out of the memory that its limit is about, or needed more than is allowed."""
        if self.final.outcome is Outcome.OUT_OF_MEMORY:
            return self.final.where != "data"  # of data loader workers, which the limit does not count
        return self.final.outcome is Outcome.COMPLETED and not self.final.feasible

    @property
    def samples_per_second(self) -> Interval | None:
        """Samples / second with its 95 % interval; None if no step was timed."""
        return self.final.samples_per_second

    @property
    def tokens_per_second(self) -> Interval | None:
        """Tokens / second, padding included, with its 95 % interval; None if unknown."""
        return self.final.tokens_per_second

    @property
    def peak_bytes(self) -> int | None:
        """Highest memory use in bytes over the probe and its rounds; None if unknown."""
        return max((measured.peak_bytes for measured in self.measurements if measured.peak_bytes), default=None)

    @property
    def probe_seconds(self) -> float:
        """The seconds of its probe and its rounds together."""
        return sum(measured.probe_seconds for measured in self.measurements)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Measurements of its probe, then of its rounds."""
        return (self.measurement, *self.confirmations)
