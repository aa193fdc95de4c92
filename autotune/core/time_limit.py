"""Time limit of a command."""

import math
import time
from dataclasses import dataclass, field

from autotune.core.errors import TimeIsOver

GRACE = 0.05
"""Share of the limit by which something that was started in time may exceed it."""

CLOSING_S, CLOSING = 3.0, 0.1
"""Time kept for the report and for ending processes: seconds, and the largest share of the limit."""


def too_late(what: str) -> TimeIsOver:
    """The error for time that ended before `what`, as in `the losses were compared`; not raised here."""
    return TimeIsOver(f"The time limit ended before {what}.", "Give a longer --timeout; the same command resumes.")


@dataclass(frozen=True)
class TimeLimit:
    """How long a command may take."""

    seconds: float | None = None  # None: no limit
    started: float = field(default_factory=time.monotonic)  # by the monotonic clock

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.seconds is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be started."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Seconds for measuring, none below zero; infinity without a limit."""
        if self.seconds is None:
            return math.inf
        closing = min(CLOSING_S, CLOSING * self.seconds)
        return max(0.0, self.started + self.seconds - closing - time.monotonic())

    def check(self, what: str, seconds: float = 0.0) -> None:
        """Raise TimeIsOver where the limit is less than so many seconds away. what: as in `too_late`."""
        if self.is_over or seconds > self.seconds_left():
            raise too_late(what)

    def cut(self, deadline_s: float) -> float:
        """The deadline in seconds of what starts now: this one, or shortly after the limit."""
        return deadline_s if self.seconds is None else min(deadline_s, self.seconds_left() + GRACE * self.seconds)
