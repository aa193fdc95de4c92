"""The time that a command may take in all."""

import math
import time
from dataclasses import dataclass, field

from autotune.core.errors import TimeIsOver

GRACE = 0.05
"""Share of the limit by which something that was begun in time may exceed it."""

CLOSING_S, CLOSING = 3.0, 0.1
"""What is left for the report and for ending processes: seconds, and the share of the limit that they are at the most."""


def too_late(what: str) -> TimeIsOver:
    """The error that says that the time was over before `what`, as in `the losses were compared`; not raised here."""
    return TimeIsOver(f"The time given was over before {what}.", "Give a longer --timeout; the same command resumes.")


@dataclass(frozen=True)
class TimeLimit:
    """How long a command may take. seconds: in all; None: as long as it needs. started: when it began (monotonic clock)."""

    seconds: float | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def is_set(self) -> bool:
        """Whether there is a limit at all."""
        return self.seconds is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more may begin."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Seconds for measuring, none below zero; infinity without a limit."""
        if self.seconds is None:
            return math.inf
        closing = min(CLOSING_S, CLOSING * self.seconds)
        return max(0.0, self.started + self.seconds - closing - time.monotonic())

    def check(self, what: str, seconds: float = 0.0) -> None:
        """Raise TimeIsOver where the limit is reached, or will be before so many seconds. what: as in `too_late`."""
        if self.is_over or seconds > self.seconds_left():
            raise too_late(what)

    def cut(self, deadline_s: float) -> float:
        """The deadline in seconds of what begins now: this one, but no later than shortly after the limit."""
        return deadline_s if self.seconds is None else min(deadline_s, self.seconds_left() + GRACE * self.seconds)
