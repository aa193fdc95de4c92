"""Why a speed-up is missing or open, and what would tell."""

from collections.abc import Sequence

from autotune.core.interval import Interval, pairs_needed
from autotune.core.request import CONFIRMATION_ROUNDS, MOST_ROUNDS
from autotune.core.trial import Trial
from autotune.study.objective import best_trial, disqualified, is_shown, speed_up


def speedup_reason(trials: Sequence[Trial], objective: str, timeout_s: float | None = None) -> str:
    """Why there is no speed-up, or why it is open and what would tell; empty where it is neither.

    Open is that of the fastest trial which lost to the baseline only because it could not be told. timeout_s: the search's,
    in seconds.
    """
    best = best_trial(trials, objective)
    if best is None or trials[0].number != 0:
        return "there is nothing to compare"
    gain, reason = speed_up(best, trials[0], objective)
    if gain is None or best.number != 0:
        return reason
    for trial, _ in disqualified(trials, objective):
        gain, _ = speed_up(trial, best, objective)
        if not trial.disqualified_reason and gain is not None:
            return _cannot_tell(trial, gain, best, timeout_s)
    return ""


def _cannot_tell(trial: Trial, gain: Interval, baseline: Trial, timeout_s: float | None) -> str:
    which = f"cannot tell whether trial {trial.number} is faster ({gain.low:.2f} to {gain.high:.2f} times as fast)"
    return f"{which}: {_what_would_tell(trial, gain, baseline, timeout_s)}"


def _what_would_tell(trial: Trial, gain: Interval, baseline: Trial, timeout_s: float | None) -> str:
    longer = " and a longer --timeout" if timeout_s is not None else ""
    if not is_shown(trial, baseline):
        more = "--timeout" if timeout_s is not None else f"--confirmation-rounds {2 * CONFIRMATION_ROUNDS}"
        return f"measure it side by side with your settings by the same command and {'a longer ' * (timeout_s is not None)}{more}"
    measured = min(len(trial.measurements), len(baseline.measurements))
    needed = pairs_needed(gain, measured, MOST_ROUNDS)
    if needed is None:
        return f"search again on a quieter machine; here not even {MOST_ROUNDS} measurements of each would tell"
    return (
        f"about {needed} measurements of each would tell here, fewer on a quieter machine: "
        f"the same command with --confirmation-rounds {needed}{longer}"
    )
