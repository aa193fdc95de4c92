"""Claim: speed of one configuration as a multiple of another's, by pairs of measurements that were made to tell it.

A pair is one round of each, of one number and one after the other on one device: they train on the same samples, and what slows
the device down slows both. Who is compared is chosen before, so that no lucky first measurement counts, and the numbers of
pairs after which a claim is looked at are fixed, each with a share of the errors: a search may stop when it likes what it sees.
Repeated looks at accumulating data: Pocock, Biometrika 64, 1977; shares of the errors: Lan and DeMets, Biometrika 70, 1983.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from autotune.core.interval import Ratio, student_t
from autotune.core.measurement import JOIN, Measurement
from autotune.core.step import Step
from autotune.core.trial import Trial
from autotune.judge.constants import BESIDE, LEAST_NOISE, LOOKS
from autotune.judge.objective import speed
from autotune.judge.observation import standard_error

COMPARISONS = 100
"""Rounds of higher numbers are comparisons, by which a winner is chosen: none of a pair, which would believe its luck.
Technical: more than the rounds of any search."""


def are_side_by_side(first: Measurement, other: Measurement) -> bool:
    """True if two measurements share a device and began at most BESIDE durations apart, or if their times are not known."""
    if not {*first.device.split(JOIN)} & {*other.device.split(JOIN)}:
        return False
    if first.started_s is None or other.started_s is None:
        return True
    return abs(first.started_s - other.started_s) <= BESIDE * max(first.probe_seconds, other.probe_seconds)


def rounds_of(trial: Trial) -> dict[int, Measurement]:
    """Number -> measurement of the rounds that the trial completed."""
    rounds = zip(trial.rounds, trial.confirmations, strict=True)
    return {number: measured for number, measured in rounds if measured.feasible and measured.steps}


def pairs(trial: Trial, rival: Trial) -> list[tuple[Measurement, Measurement]]:
    """The pairs of these two, in the order of their numbers."""
    mine, its = rounds_of(trial), rounds_of(rival)
    both = [(mine[number], its[number]) for number in sorted(mine.keys() & its.keys()) if number <= COMPARISONS]
    return [pair for pair in both if are_side_by_side(*pair)]


def log_ratio(mine: Measurement, its: Measurement, objective: str) -> float:
    """Logarithm of the one's speed over the other's.

    If samples differ in length, by the steps that both ran, if they trained on the same samples; unless they share none, or not
    all micro-steps were run.
    """
    begin = max(mine.untimed_steps, its.untimed_steps)
    end = min(mine.untimed_steps + len(mine.steps), its.untimed_steps + len(its.steps))
    shared, its_shared = (each.steps[begin - each.untimed_steps : end - each.untimed_steps] for each in (mine, its))
    is_whole = not (mine.is_composed or its.is_composed)
    if (
        mine.tokens_per_sample is not None
        and end - begin >= 2
        and is_whole
        and _work(mine, shared) == _work(its, its_shared)
    ):
        seconds, its_seconds = (sum(step.seconds for step in steps) for steps in (shared, its_shared))
        return math.log(its_seconds / seconds) + math.log(mine.after_compiling / its.after_compiling)
    rate, its_rate = speed(mine, objective), speed(its, objective)
    return math.log(rate / its_rate) if rate and its_rate else 0.0


def _work(measured: Measurement, steps: Sequence[Step]) -> list[tuple[int, int]]:
    """(samples, tokens without padding) of each step, over all ranks."""
    ranks = measured.data_parallel_size
    return [(ranks * step.samples, ranks * step.non_padding_tokens) for step in steps]


def claim(trial: Trial, rival: Trial, objective: str) -> Ratio | None:
    """The speed of one trial over the other's with its interval, from the pairs at the last look; None before the first."""
    several = pairs(trial, rival)
    look = last_look(len(several))
    if not look:
        return None
    ratio = ratio_of([log_ratio(*pair, objective) for pair in several[:look]], LOOKS[look])
    half = max(math.log(ratio.high / ratio), _least_half(several[:look], LOOKS[look]))
    return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def _least_half(several: Sequence[tuple[Measurement, Measurement]], share: float) -> float:
    """Half of the interval of the pairs' mean logarithm by the steps within the measurements: a few pairs agree by chance.

    0 if samples differ in length: steps do then, too.
    """
    both = [measured for pair in several for measured in pair if measured.tokens_per_sample is None]
    errors = [error for error in map(standard_error, both) if error is not None]
    if not errors:
        return 0.0
    degrees = sum(len(measured.composed_steps) - 1 for measured in both)
    return student_t(degrees, share) * math.sqrt(2 * fmean(error**2 for error in errors) / len(several))


def last_look(count: int) -> int:
    """The number of pairs at the last look at so many; 0 before the first."""
    return max((look for look in LOOKS if look <= count), default=0)


def pairs_needed(ratio: Ratio, count: int) -> int | None:
    """Pairs of the first look that will exclude 1 if pairs vary as these; None if none will."""
    look, away = last_look(count), abs(math.log(ratio))
    deviation = math.log(ratio.high / ratio.low) / 2 / critical(look, LOOKS[look])
    later = (count for count in LOOKS if count > look)
    return next((count for count in later if critical(count, LOOKS[count]) * deviation < away), None)


def ratio_of(logarithms: Sequence[float], share: float) -> Ratio:
    """exp of the mean of these, with the interval that misses it with this probability (Student's t)."""
    mean, half = fmean(logarithms), critical(len(logarithms), share) * max(stdev(logarithms), LEAST_NOISE)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def critical(count: int, share: float) -> float:
    """Half of the interval of a mean of so many pairs, in standard deviations of one."""
    return student_t(count - 1, share) / math.sqrt(count)
