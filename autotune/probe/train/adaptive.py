"""Adaptive length of a probe: when its steps have settled, and when its speed is precise enough."""

from collections.abc import Sequence
from statistics import median

from autotune.core import Interval
from autotune.core.interval import foreseen_width
from autotune.probe.order import Timing

SETTLED = 0.10
"""A step's time has settled once it is within this share of the steps before it, the first left out."""

HOPELESS_LEAST = 3
"""Timed steps before a probe may call itself hopeless: two show too little of how much they vary."""


def settled(untimed_s: Sequence[float], timing: Timing) -> bool:
    """Whether timing may begin after these untimed steps (seconds each).

    The first step is slow (1.06 to 1.4 times as long, measured) and the second can be. Settled: the last step took about
    as long as those between, neither slower nor faster. Between the least and most of `timing`, and not before its seconds.
    """
    if len(untimed_s) < timing.untimed_least or sum(untimed_s[1:]) < timing.untimed_seconds:
        return False
    if len(untimed_s) >= timing.untimed_most or len(untimed_s) < 3:
        return True
    return abs(untimed_s[-1] / median(untimed_s[1:-1]) - 1) <= SETTLED


def verdict(speed: Interval, steps: int, seconds: float, timing: Timing, to_reach: float | None) -> str:
    """`continue`, `hopeless` (its whole interval is below the speed to reach) or `enough`.

    speed: so far, of `steps` timed steps that took `seconds`. Enough: the interval that `timing` aims at is reached, or
    cannot be with as many steps as it allows: then rounds apart in time tell more than further steps. Never before its
    least seconds.
    """
    if steps >= HOPELESS_LEAST and to_reach is not None and speed.high < to_reach:
        return "hopeless"
    if seconds < timing.timed_seconds_least:
        return "continue"
    if steps >= timing.timed_most or (seconds > timing.seconds and steps >= HOPELESS_LEAST):
        return "enough"
    if steps < timing.timed_least:
        return "continue"
    wanted = 2 * timing.target
    within_reach = foreseen_width(speed, steps, timing.timed_most - steps) <= wanted
    return "continue" if speed.relative_width > wanted and within_reach else "enough"
