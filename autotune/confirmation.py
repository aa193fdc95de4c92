"""Confirmation: the finalists and the baseline again, in interleaved rounds, until the best one is certain."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.measurement import Measurement
from autotune.objective import finalists
from autotune.trial import Trial

MOST_GROUPS = 4
"""Groups of finalists that are confirmed at most, one after the other."""

EXACT = 0.02
"""Full width of a speed's 95 % interval, as a share of it, from which on further rounds are not worth their time."""

FURTHER_S = 90.0
"""Seconds after which a group's further rounds, beyond the ones that it needs, are not begun."""


def confirm(
    trials: list[Trial],
    objective: str,
    rounds: int,
    measure: Callable[[Trial, int], Measurement],
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Add confirmations to the trials in this list: the finalists' and the baseline's, in interleaved rounds.

    rounds: needed at the least; up to twice as many are run while a rival's interval is wide and time is left.
    measure: (trial, round from 1) -> its measurement with full accumulation. Where a confirmation fails or comes out
    slower than others' probes, those are confirmed too, unless the time is over. Rounds that an interrupted search
    has behind it are not run again.
    """
    for group in range(MOST_GROUPS if rounds else 0):
        begun = [trial for trial in trials if trial.confirmations and not is_settled(trial, rounds)]
        rivals = begun or finalists(trials, objective)
        baseline = [trial for trial in trials[:1] if trial.feasible and not is_settled(trial, rounds)]
        numbers = list(dict.fromkeys(trial.number for trial in [*rivals, *baseline]))
        if not rivals or (group and out_of_time()):
            return
        until = time.monotonic() + FURTHER_S
        for one_round in range(1, 2 * rounds + 1):
            if one_round > rounds and (_exact(trials, numbers) or out_of_time() or time.monotonic() > until):
                break
            for number in rotated(numbers, one_round - 1):
                index = next(i for i, trial in enumerate(trials) if trial.number == number)
                trial = trials[index]
                if len(trial.confirmations) < one_round and not _failed(trial):
                    measurement = measure(trial, one_round)
                    trials[index] = replace(trial, confirmations=(*trial.confirmations, measurement))


def is_settled(trial: Trial, rounds: int) -> bool:
    """Whether a trial needs no more confirmation rounds: it has them all, or failed one."""
    return len(trial.confirmations) >= rounds or _failed(trial)


def _failed(trial: Trial) -> bool:
    return any(not one.feasible for one in trial.confirmations)


def _exact(trials: Sequence[Trial], numbers: Sequence[int]) -> bool:
    """Whether every rival's speed is known well enough, or it has failed."""
    speeds = [trial.samples_per_second for trial in trials if trial.number in numbers and not _failed(trial)]
    return all(speed is None or speed.relative_width <= EXACT for speed in speeds)


def rotated(rivals: Sequence[int], by: int) -> list[int]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
