"""Confirmation: the finalists and the baseline again, in interleaved rounds, until the best one is certain."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.core import Interval, Measurement, Trial
from autotune.study.objective import SPEED_UP_WIDTH, finalists, quotient, speed
from autotune.study.pacing import LEAST_RIVALS, rounds_seconds

MOST_GROUPS = 4
"""Groups of finalists that are confirmed at most, one after the other."""

EQUAL = 0.02
"""Full width of the 95 % interval of two rivals' speeds, one over the other, below which holding 1 means equal."""

FURTHER = 1.0
"""A group's further rounds, beyond the ones that it needs, begin while it has taken no more than this share of the time
that the search's probes took: a short search is not worth a long confirmation."""


def confirm(
    trials: list[Trial],
    objective: str,
    rounds: int,
    measure: Callable[[Trial, int], Measurement],
    seconds_left: Callable[[], float] = lambda: math.inf,
    spare_s: Callable[[], float] = lambda: 0.0,
    expected: Callable[[], Mapping[int, Interval] | None] = lambda: None,
    confirmed: Callable[[Trial], None] = lambda trial: None,
) -> None:
    """Add confirmations to the trials in this list: the finalists' and the baseline's, in interleaved rounds.

    rounds: needed at the least; up to twice as many are run while it is open who is faster, or how much faster than
    the baseline. measure: (trial, round from 1) -> its measurement with full accumulation. Where a confirmation fails or
    comes out slower than others' probes, those are confirmed too. expected: trial's number -> its speed by what all
    measurements so far say together. confirmed: called with a trial once its
    round is among the trials. Rounds that an interrupted search has behind it are not run again.

    seconds_left: for the whole confirmation. Where that is limited, no round begins that is not expected to end in time,
    there are fewer finalists where time is short, and a baseline without a rival is not measured again. spare_s: of
    these, what further rounds and further finalists leave for what follows. What `measure` raises passes, and what was
    measured before stays.
    """
    for _ in range(MOST_GROUPS if rounds else 0):
        begun = [trial for trial in trials if trial.confirmations and not is_settled(trial, rounds)]
        rivals = begun or finalists(trials, objective, expected=expected())
        baseline = [trial for trial in trials[:1] if trial.feasible and not is_settled(trial, rounds)]
        left = seconds_left()
        numbers = _in_time(rivals, baseline, rounds, left, spare_s(), objective)
        alone = numbers == [0] and not any(trial.confirmations for trial in trials[1:])
        if not rivals or not numbers or (alone and math.isfinite(left)):
            return
        until = time.monotonic() + FURTHER * sum(trial.measurement.probe_seconds for trial in trials)
        for one_round in range(1, 2 * rounds + 1):
            is_further = one_round > rounds
            if is_further and (_is_decided(trials, numbers, objective) or time.monotonic() > until):
                break
            running = [trial for trial in trials if trial.number in numbers and not _failed(trial)]
            if rounds_seconds(running, one_round) > seconds_left() - (spare_s() if is_further else 0.0):
                break
            for number in rotated(numbers, one_round - 1):
                index = next(i for i, trial in enumerate(trials) if trial.number == number)
                trial = trials[index]
                if len(trial.confirmations) < one_round and not _failed(trial):
                    measurement = measure(trial, one_round)
                    trials[index] = replace(trial, confirmations=(*trial.confirmations, measurement))
                    confirmed(trials[index])


def _in_time(
    rivals: Sequence[Trial], baseline: Sequence[Trial], rounds: int, seconds: float, spare_s: float, objective: str
) -> list[int]:
    """The numbers of those that are confirmed: of the rivals, the best first, as many as there is time for.

    Two, or those of which at least one round ends in time; more where all their rounds do and leave time to spare.
    """
    if math.isinf(seconds):
        return [trial.number for trial in _each_once([*rivals, *baseline])]
    ordered = sorted(rivals, key=lambda one: -(speed(one.final, objective) or 0.0) if one.confirmations else 0.0)
    least = min(LEAST_RIVALS, len(ordered))
    for count in range(len(ordered), 0, -1):
        group = _each_once([*ordered[:count], *baseline])
        if count > least and rounds_seconds(group, rounds) > seconds - spare_s:
            continue
        if rounds_seconds(group, 1) <= seconds:
            return [trial.number for trial in group]
    return []


def _each_once(trials: Iterable[Trial]) -> list[Trial]:
    return list({trial.number: trial for trial in trials}.values())


def is_settled(trial: Trial, rounds: int) -> bool:
    """Whether a trial needs no more confirmation rounds: it has them all, or failed one."""
    return len(trial.confirmations) >= rounds or _failed(trial)


def _failed(trial: Trial) -> bool:
    return any(not measurement.feasible for measurement in trial.confirmations)


def _is_decided(trials: Sequence[Trial], numbers: Sequence[int], objective: str) -> bool:
    """Whether the fastest is surely faster than each other or as fast, and its speed-up is known well enough."""
    running = [trial for trial in trials if trial.number in numbers and not _failed(trial)]
    rates = {trial.number: rate for trial in running if (rate := speed(trial.final, objective)) is not None}
    fastest = max(running, key=lambda trial: rates.get(trial.number, 0.0), default=None)
    for trial in running:
        if fastest is None or trial.number == fastest.number or trial.number not in rates:
            continue
        times_as_fast = quotient(fastest, trial, objective)
        if times_as_fast.low <= 1 and times_as_fast.relative_width > EQUAL:
            return False
        if trial.number == 0 and times_as_fast.relative_width > SPEED_UP_WIDTH:
            return False
    return True


def rotated(rivals: Sequence[int], by: int) -> list[int]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
