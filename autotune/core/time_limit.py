"""Time limit of a command."""

import math
import time
from dataclasses import dataclass, field

from autotune.core.errors import TimeIsOver

GRACE = 0.05
"""Share of the limit by which a step that was started in time may exceed it."""

CLOSING_S, CLOSING = 3.0, 0.1
"""Time kept for the report and for ending processes: seconds, and the largest share of the limit."""


LEAST_S, LONGER = 60.0, 3
"""A search of a small model on a few cores takes the first, in seconds; a limit that was too short is raised by the second."""


@dataclass(frozen=True)
class TimeLimit:
    """Longest time that a command may take."""

    seconds: float | None = None  # None: no limit
    started: float = field(default_factory=time.monotonic)  # by the monotonic clock

    @property
    def is_set(self) -> bool:
        """True if there is a limit."""
        return self.seconds is not None

    @property
    def is_over(self) -> bool:
        """True if nothing more may be started."""
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Seconds for measuring, none below zero; infinity without a limit."""
        if self.seconds is None:
            return math.inf
        closing = min(CLOSING_S, CLOSING * self.seconds)
        return max(0.0, self.started + self.seconds - closing - time.monotonic())

    def too_late(self, what: str, why: str = "") -> TimeIsOver:
        """The error for time that ended before `what`, as in `the losses were compared`, and why; not raised here."""
        minutes = math.ceil(max(LEAST_S, LONGER * (self.seconds or 0.0)) / 60)
        return TimeIsOver(
            f"The time limit ended before {what}{f': {why}' if why else ''}.",
            f"Give at least --timeout {minutes}m; the same command resumes.",
        )

    def check(self, what: str, seconds: float = 0.0) -> None:
        """Raise TimeIsOver if the limit is less than `seconds` away. what: as in `too_late`."""
        if self.is_over or seconds > self.seconds_left():
            raise self.too_late(what)

    def cut(self, deadline_s: float) -> float:
        """The deadline in seconds of a step that starts now: this one, or shortly after the limit."""
        return deadline_s if self.seconds is None else min(deadline_s, self.seconds_left() + GRACE * self.seconds)
