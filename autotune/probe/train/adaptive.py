"""Adaptive length of a probe: when its steps have settled, and when its speed is precise enough."""

import math
from collections.abc import Sequence
from enum import Enum, auto
from itertools import accumulate, takewhile
from statistics import fmean, median, variance

from autotune.core import Interval
from autotune.core.interval import foreseen_width
from autotune.probe.order import Timing

SETTLED = 0.10
"""A step's time has settled once it is within this share of the steps before it, the first left out."""

STEADY = 0.005
"""Change of a step's mean time from one window of a GPU's untimed steps to the next up to which its speed has settled."""

STEADY_STEP = 0.02
"""The same of windows of one or two steps, which do not show how much single steps differ by chance."""

STEADY_CLOCK = 0.01
"""Change of its clock's mean up to which the clock has settled: clocks move in steps of 15 MHz, 0.8 % of 1.9 GHz."""

LOOKS = 5
"""Looks at the windows in the time of one: a look takes as long as some per cent of a short step."""

HOPELESS_LEAST = 3
"""Timed steps before a probe may call itself hopeless: two show too little of how much they vary."""


def settled(untimed_s: Sequence[float], timing: Timing, clocks_mhz: Sequence[float | None] = ()) -> bool:
    """True if timing may begin after these untimed steps (seconds each).

    The first step is slow (1.06 to 1.4 times as long, measured) and the second can be. Settled: the last step took about
    as long as those between, neither slower nor faster. Between the least and most of `timing`. If it has windows, also the
    last two of them agree in speed and in the card's clock, unless that takes longer than its most seconds.

    clocks_mhz: the clock at the end of each step, None if it is unknown.
    """
    if len(untimed_s) < timing.untimed_least:
        return False
    if timing.window_s:
        taken, between_s = sum(untimed_s[1:]), timing.window_s / LOOKS
        if taken < timing.untimed_seconds_most:
            is_due = taken // between_s > (taken - untimed_s[-1]) // between_s
            if not is_due or not _agree(untimed_s[1:], [*clocks_mhz][1:], timing.window_s):
                return False
    if len(untimed_s) >= timing.untimed_most or len(untimed_s) < 3:
        return True
    return abs(untimed_s[-1] / median(untimed_s[1:-1]) - 1) <= SETTLED


def _agree(step_times_s: Sequence[float], clocks_mhz: Sequence[float | None], window_s: float) -> bool:
    """True if the last two windows have one mean step time and one mean clock, apart from small changes and chance.

    A window lasts `window_s`, or one step that takes longer.
    """
    count = 1 + sum(1 for _ in takewhile(lambda end: end < window_s, accumulate(reversed(step_times_s))))
    if len(step_times_s) < 2 * count:
        return False
    known = [mhz for mhz in clocks_mhz[-2 * count :] if mhz]
    steady = STEADY if count > 2 else STEADY_STEP
    return _is_steady(step_times_s[-2 * count :], steady) and (
        len(known) < 2 * count or _is_steady(known, STEADY_CLOCK)
    )


def _is_steady(values: Sequence[float], share: float) -> bool:
    """True if the second half's mean is the first half's, but for this share of it or twice what chance explains."""
    half = len(values) // 2
    before, after = values[:half], values[half:]
    error = math.sqrt((variance(before) + variance(after)) / half) if half > 1 else 0.0
    return abs(fmean(after) - fmean(before)) <= max(2 * error, share * fmean(before))


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
