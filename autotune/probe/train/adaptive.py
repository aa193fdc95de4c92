"""Adaptive length of a probe: when its steps have settled, and when its speed is precise enough."""

import math
from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate
from statistics import fmean, median, variance

from autotune.core import Interval
from autotune.core.interval import foreseen_width
from autotune.probe.order import Timing

SETTLED = 0.10
"""A step's time has settled once it is within this share of the steps before it, the first left out."""

STEADY = 0.02
"""Change of a step's time from the first to the second half of some seconds from which on a GPU's clock has not settled."""

LOOKS = 20
"""Number of checks for that change in those seconds: a check takes as long as some per cent of a short step."""

HOPELESS_LEAST = 3
"""Timed steps before a probe may call itself hopeless: two show too little of how much they vary."""


def settled(untimed_s: Sequence[float], timing: Timing) -> bool:
    """True if timing may begin after these untimed steps (seconds each).

    The first step is slow (1.06 to 1.4 times as long, measured) and the second can be. Settled: the last step took about
    as long as those between, neither slower nor faster. Between the least and most of `timing`, and not before its seconds; up to
    its most seconds also not while the steps of the last `untimed_seconds` become slower or faster.
    """
    taken = sum(untimed_s[1:])
    if len(untimed_s) < timing.untimed_least or taken < timing.untimed_seconds:
        return False
    if taken < timing.untimed_seconds_most:
        between_s = timing.untimed_seconds / LOOKS
        is_due = taken // between_s > (taken - untimed_s[-1]) // between_s
        if not is_due or _changes(untimed_s[1:], timing.untimed_seconds):
            return False
    if len(untimed_s) >= timing.untimed_most or len(untimed_s) < 3:
        return True
    return abs(untimed_s[-1] / median(untimed_s[1:-1]) - 1) <= SETTLED


def _changes(step_times_s: Sequence[float], seconds: float) -> bool:
    """True if a step's mean time changes between the halves of the last `seconds`: by STEADY, and by more than chance."""
    half = sum(end <= seconds for end in accumulate(reversed(step_times_s))) // 2
    if half < 2:
        return False
    before, after = step_times_s[-2 * half : -half], step_times_s[-half:]
    error = math.sqrt((variance(before) + variance(after)) / half)
    return abs(fmean(after) - fmean(before)) > max(2 * error, STEADY * fmean(before))


class Decision(Enum):
    """Decision on continuing a probe."""

    GO_ON = auto()
    HOPELESS = auto()  # the whole interval is below the speed to reach
    ENOUGH = auto()


def decide(speed: Interval, steps: int, seconds: float, timing: Timing, to_reach: float | None) -> Decision:
    """Decision on continuing a probe after these steps.

    speed: so far, of `steps` timed steps that took `seconds`. Enough: the interval that `timing` aims at is reached, or
    cannot be with as many steps as it allows: then rounds apart in time tell more than further steps. Never before its
    least seconds.
    """
    if steps >= HOPELESS_LEAST and to_reach is not None and speed.high < to_reach:
        return Decision.HOPELESS
    if seconds < timing.timed_seconds_least:
        return Decision.GO_ON
    if steps >= timing.timed_most or (seconds > timing.seconds and steps >= HOPELESS_LEAST):
        return Decision.ENOUGH
    if steps < timing.timed_least:
        return Decision.GO_ON
    wanted = 2 * timing.target
    within_reach = foreseen_width(speed, steps, timing.timed_most - steps) <= wanted
    return Decision.GO_ON if speed.relative_width > wanted and within_reach else Decision.ENOUGH
