"""Finalists: the trials that are confirmed next."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.core.trial import Trial
from autotune.study.objective import SAME_MEMORY, SAME_SPEED, as_fast_as_the_baseline, changes, speed

FINALISTS = 5
"""Trials that are confirmed at once at the most. One probe errs by what two processes differ by: with three, every tenth search
on recorded tables left the best, which it had probed, unconfirmed and lost 3 to 6 % (mean regret 0.6 %; with five 0.3 %)."""


def finalists(
    trials: Sequence[Trial],
    objective: str,
    most: int = FINALISTS,
    drawn: Mapping[int, NDArray[np.float64]] | None = None,
    is_worth: Callable[[Trial, float], bool] = lambda trial, gain: True,
    least_gain: float = 0.0,
) -> list[Trial]:
    """Trials to confirm next, best first: they are measured again in interleaved rounds.

    drawn: number -> (n,) speeds, drawn together by what all probes say, which noise moves less than one probe's own; by
    default what each probe measured. At first the best trial and, of the others, those whose expected gain (a share) is worth a
    round; of those that surely differ by less than SAME_SPEED the simplest stands for all. Without draws those
    within noise of the best: intervals that overlap, and whatever lies within 3 %, because two processes of one configuration
    differ by more than the steps of one show. Once some are confirmed, those unconfirmed ones whose probe was faster than the
    best confirmation by more than `least_gain`, with what rounds are slower than probes taken off; none where there are none.
    """
    able = [t for t in trials if t.feasible and not t.measurement.ended_early and not t.disqualified_reason]
    confirmed, unconfirmed = [t for t in able if t.confirmed], [t for t in able if not t.confirmations]
    if objective == "memory":
        lean = sorted(as_fast_as_the_baseline(unconfirmed, trials), key=lambda t: t.peak_bytes or 0)
        bar = min((t.peak_bytes or 0 for t in confirmed if t.number), default=None)
        return [t for t in lean if bar is None or (t.peak_bytes or 0) < bar][:1]
    measured = {t.number: rate for t in able if (rate := speed(t.final, objective)) is not None}
    rates = {number: float(rate) for number, rate in measured.items()}
    rates |= {t.number: float(drawn[t.number].mean()) for t in unconfirmed if drawn and t.number in drawn}
    unconfirmed.sort(key=lambda t: -rates[t.number])
    if not unconfirmed:
        return []
    if confirmed:
        # A machine that was slower in the rounds than in the probes would make all that has no round yet look fast. Only the
        # baseline, which was not chosen for its probe, can tell.
        slower = min(
            (measured[0] / rate for t in confirmed if not t.number and (rate := speed(t.measurement, objective))),
            default=1.0,
        )
        best = max(measured[t.number] for t in confirmed)
        return [t for t in unconfirmed if min(1.0, slower) * rates[t.number] > (1 + least_gain) * best][:most]
    first = unconfirmed[0]
    if not drawn or first.number not in drawn:
        floor = min(measured[first.number].low, 0.97 * measured[first.number])
        return [t for t in unconfirmed if measured[t.number].high >= floor][:most]
    chosen = [first]
    for trial in unconfirmed[1:]:
        ahead = drawn[trial.number] / drawn[first.number] - 1
        twin = next((t for t in chosen if _are_same(drawn[t.number], drawn[trial.number])), None)
        if twin and _is_simpler(trial, twin, trials):
            chosen[chosen.index(twin)] = trial
        elif not twin and len(chosen) < most and is_worth(trial, float(np.maximum(ahead, 0.0).mean())):
            chosen.append(trial)
    return chosen


def _is_simpler(trial: Trial, other: Trial, trials: Sequence[Trial]) -> bool:
    """Whether it changes fewer of the user's settings than the other one, or as many and needs less memory."""
    more = changes(trial, trials) - changes(other, trials)
    return more < 0 or (more == 0 and (trial.peak_bytes or 0) < (other.peak_bytes or 0) / (1 + SAME_MEMORY))


def _are_same(speeds: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    """Whether two trials' speeds surely (95 %) differ by less than SAME_SPEED: their settings have no effect that was seen."""
    return bool((np.abs(speeds / others - 1) < SAME_SPEED).mean() >= 0.95)
