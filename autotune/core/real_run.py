"""Real run: the speed of a whole training with an answer, against the promised one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.interval import Interval
from autotune.core.io import Serializable
from autotune.core.units import counted, format_interval

SHORTFALL = 0.03
"""Share below a promise that counts as kept: plain trainings agree with themselves, half by half, within it on a quiet machine
(reports/fidelity.md)."""


@dataclass(frozen=True)
class RealRun(Serializable):
    """Speeds in samples / second with their 95 % intervals; shares of its time."""

    promised: float
    promised_low: float
    promised_high: float
    measured: float  #: of its settled steps, without evaluation and saving
    measured_low: float
    measured_high: float
    overall: float  #: with evaluation and saving
    steps: int  #: that were timed
    seconds: float  #: of these steps
    data_wait_share: float  #: of these steps' time
    outside_share: float  #: in evaluation and saving, of all the time
    reason: str = ""  #: likely reasons why it is below the promise
    is_over: bool = False  #: the training has ended; else its speed after it settled
    date: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """True unless the speed of its steps lies more than SHORTFALL below the promised interval."""
        return self.measured_high >= (1 - SHORTFALL) * self.promised_low

    @property
    def is_slower(self) -> bool:
        """True if its speed lies below the promised interval, with evaluation and saving or without."""
        return not self.held or self.overall < (1 - SHORTFALL) * self.promised_low

    @property
    def text(self) -> str:
        """One sentence without a full stop."""
        speed = format_interval(self.measured, self.measured_low, self.measured_high)
        promised = format_interval(self.promised, self.promised_low, self.promised_high)
        end = "as promised" if self.held else "below the promise"
        text = f"{speed} samples/s over {counted(self.steps, 'step')}, {end} ({promised})"
        if self.outside_share >= SHORTFALL:
            text += f"; {self.overall:.3g} with evaluation and saving, {self.outside_share:.0%} of the time"
        return text

    @classmethod
    def of(cls, promised: Interval, measured: Interval, **facts: Any) -> "RealRun":
        """The run of these two speeds."""
        ends: dict[str, Any] = {"promised_low": promised.low, "promised_high": promised.high}
        ends |= {"measured_low": measured.low, "measured_high": measured.high}
        return cls(promised=float(promised), measured=float(measured), **ends, **facts)
