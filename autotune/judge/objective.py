"""Objective: the rate that a search compares, and quotients of two trials' rates."""

import math
from collections.abc import Sequence

from autotune.core.interval import Interval, Ratio, quotient_interval, quotient_of_means
from autotune.core.measurement import ROUNDS_THAT_TELL, Measurement
from autotune.core.trial import Trial


def speed(measurement: Measurement, objective: str) -> Interval | None:
    """The rate that the objective compares: tokens / second if asked for and known, else samples / second.

    Of tokens those that are not padding: more padding is not more work. Over a run of announced length, what it spends
    on compiling counts.
    """
    rate = measurement.samples_per_second
    if objective == "tokens_per_second" and measurement.tokens_per_second:
        rate = measurement.non_padding_tokens_per_second or measurement.tokens_per_second
    share = measurement.after_compiling
    return rate if rate is None or share == 1.0 else Interval(rate.value * share, rate.low * share, rate.high * share)


def pays_from(best: Trial, trials: Sequence[Trial]) -> int:
    """Steps of a run from which on the best trial's compiling has paid against each feasible one that compiles less.

    0 if it compiles nothing. Where none is slower over any number of steps, that one does not count.
    """
    steps = 0.0
    for trial in trials:
        saved_s = (trial.final.step_time_s or 0.0) - (best.final.step_time_s or 0.0)
        spent_s = best.final.compile_s - trial.final.compile_s
        if trial.feasible and spent_s > 0 and saved_s > 0:
            steps = max(steps, spent_s / saved_s)
    return math.ceil(steps)


def round_speeds(trial: Trial, objective: str) -> dict[int, float]:
    """The number of each round that the trial completed -> its speed there."""
    rates = {
        number: speed(measured, objective) for number, measured in zip(trial.rounds, trial.confirmations, strict=True)
    }
    return {number: float(rate) for number, rate in rates.items() if rate}


def round_ratio(above: Trial, below: Trial, objective: str) -> Ratio:
    """Speed over speed with its interval: round by round if both were confirmed in the same ones, else of the means.

    Where only one has rounds, probe over probe: the machine of the rounds may be another one than that of the probes.
    """
    speeds, others = round_speeds(above, objective), round_speeds(below, objective)
    common = sorted(speeds.keys() & others.keys())
    if len(common) >= ROUNDS_THAT_TELL:
        return quotient_interval([speeds[number] for number in common], [others[number] for number in common])
    of_probes = not (above.confirmations and below.confirmations)
    rate, base_rate = (speed(t.measurement if of_probes else t.final, objective) for t in (above, below))
    assert rate is not None
    assert base_rate is not None
    means = quotient_of_means(rate, base_rate)
    if not common:
        return means
    paired = quotient_interval([speeds[number] for number in common], [others[number] for number in common]).value
    return Ratio(paired, means.low * paired / means, means.high * paired / means)


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Feasible trials that no other beats in both speed and peak memory, fastest first."""
    able = [t for t in trials if t.feasible and not t.disqualified_reason and t.samples_per_second and t.peak_bytes]
    able.sort(key=lambda t: (-t.samples_per_second.value, t.peak_bytes))  # type: ignore[union-attr]
    front: list[Trial] = []
    for trial in able:
        if not front or (trial.peak_bytes or 0) < (front[-1].peak_bytes or 0):
            front.append(trial)
    return front
