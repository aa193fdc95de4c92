"""Confirmation: the finalists and the baseline again, longer, in interleaved rounds, until the best one is certain."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.measurement import Measurement
from autotune.objective import finalists
from autotune.trial import Trial

MOST_GROUPS = 4
"""Groups of finalists that are confirmed at most, one after the other."""


def confirm(
    trials: list[Trial],
    objective: str,
    rounds: int,
    measure: Callable[[Trial, int], Measurement],
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Add confirmations to the trials in this list: the finalists' and the baseline's, in interleaved rounds.

    measure: (trial, round from 1) -> its measurement with full accumulation. Where a confirmation fails or comes out
    slower than others' probes, those are confirmed too, unless the time is over. Rounds that an interrupted search
    has behind it are not run again.
    """
    for group in range(MOST_GROUPS if rounds else 0):
        begun = [trial for trial in trials if trial.confirmations and not is_settled(trial, rounds)]
        rivals = begun or finalists(trials, objective)
        baseline = [trial for trial in trials[:1] if trial.feasible and not is_settled(trial, rounds)]
        rivals = list({trial.number: trial for trial in [*rivals, *baseline]}.values())
        if not rivals or (group and out_of_time()):
            return
        for one_round in range(1, rounds + 1):
            for rival in rotated(rivals, one_round - 1):
                index = next(i for i, trial in enumerate(trials) if trial.number == rival.number)
                trial = trials[index]
                if len(trial.confirmations) < one_round and not is_settled(trial, rounds):
                    measurement = measure(trial, one_round)
                    trials[index] = replace(trial, confirmations=(*trial.confirmations, measurement))


def is_settled(trial: Trial, rounds: int) -> bool:
    """Whether a trial needs no more confirmation rounds: it has them all, or failed one."""
    return len(trial.confirmations) >= rounds or any(not one.feasible for one in trial.confirmations)


def rotated(rivals: Sequence[Trial], by: int) -> list[Trial]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
