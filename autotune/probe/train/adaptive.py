"""Adaptive length of a probe: when its steps have settled, and when its speed is known well enough."""

from collections.abc import Sequence
from statistics import median

from autotune.core import Interval
from autotune.core.interval import foreseen_width
from autotune.probe.order import Timing

SETTLED = 0.10
"""A step's time has settled once it lies within this share of the steps' before it, the first left out."""

HOPELESS_LEAST = 3
"""Timed steps before a probe may call itself hopeless: two tell too little of how much they vary."""


def settled(untimed_s: Sequence[float], timing: Timing) -> bool:
    """Whether timing may begin after these untimed steps (seconds each).

    The first step is slow (1.06 to 1.4 times as long, measured) and the second can be. Settled means that the last step
    took about as long as those between; neither faster nor slower, for a step chosen for being fast would be followed by
    more of these. Between the least and most that `timing` allows, and not before its seconds are over.
    """
    if len(untimed_s) < timing.untimed_least or sum(untimed_s[1:]) < timing.untimed_seconds:
        return False
    if len(untimed_s) >= timing.untimed_most or len(untimed_s) < 3:
        return True
    return abs(untimed_s[-1] / median(untimed_s[1:-1]) - 1) <= SETTLED


def verdict(speed: Interval, steps: int, seconds: float, timing: Timing, best: Interval | None) -> str:
    """`go on`, `hopeless` (its interval lies wholly below the best one's) or `enough`.

    speed: so far, of `steps` timed steps that took `seconds`; best: the fastest configuration's, None where none is.
    Enough is as many as give the interval that `timing` aims at; or the least, where as many as are allowed would not
    give it either: on a machine whose speed wanders, rounds apart in time tell more than further steps in a row. Nothing
    is enough before the least seconds are over.
    """
    if steps >= HOPELESS_LEAST and best is not None and speed.high < best.low:
        return "hopeless"
    if seconds < timing.timed_seconds_least:
        return "go on"
    if steps >= timing.timed_most or (seconds > timing.seconds and steps >= HOPELESS_LEAST):
        return "enough"
    if steps < timing.timed_least:
        return "go on"
    wanted = 2 * timing.target
    within_reach = foreseen_width(speed, steps, timing.timed_most - steps) <= wanted
    return "go on" if speed.relative_width > wanted and within_reach else "enough"
