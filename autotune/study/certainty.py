"""Reasons why a speed-up is missing or open, and advice."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.interval import pairs_needed
from autotune.core.reason import Kind, Reason
from autotune.core.request import CONFIRMATION_ROUNDS, MOST_ROUNDS
from autotune.core.trial import Trial
from autotune.space.substitute import compared_with, substitute
from autotune.study.objective import best_trial, disqualified, is_shown, speed_up

_OPEN = "cannot tell whether trial {trial:.0f} is faster ({low:.2f} to {high:.2f} times as fast)"


class GapKind(Kind):
    """Kinds of reasons why there is no speed-up, or why it is open."""

    NOTHING_TO_COMPARE = "nothing_to_compare", "there is nothing to compare"
    NO_BASELINE = "baseline_does_not_run", "the baseline does not run here: {detail}"
    NO_SPEED = "baseline_has_no_speed", "the baseline has no speed to compare with"
    NOT_PROVEN = "not_proven", "the speed-up is that of single probes, not proven"
    NOT_BESIDE = "not_measured_side_by_side", _OPEN
    TOO_FEW_ROUNDS = "too_few_rounds", _OPEN
    TOO_NOISY = "too_noisy", _OPEN


@dataclass(frozen=True)
class SpeedupGap(Reason):
    """Reason why there is no speed-up, or why it is unknown whether trial `numbers["trial"]` is faster."""

    kind: GapKind

    @property
    def text(self) -> str:
        """For people, with what would tell."""
        return ": ".join(filter(None, (super().text, self.advice)))

    @property
    def rounds(self) -> int | None:
        """Rounds that would tell; None if that is unknown."""
        return int(self.numbers["rounds"]) if "rounds" in self.numbers else None

    @property
    def advice(self) -> str:
        """Advice on how to find out; empty if nothing was measured that could be compared."""
        rounds, has_timeout = f"--confirmation-rounds {self.rounds}", "timeout_s" in self.numbers
        match self.kind:
            case GapKind.NOT_BESIDE:
                how = "a longer --timeout" if has_timeout else rounds
                return f"measure it side by side with the baseline by the same command and {how}"
            case GapKind.TOO_FEW_ROUNDS:
                return (
                    f"about {self.rounds} measurements of each would tell here, fewer on a quieter machine: "
                    f"the same command with {rounds}{' and a longer --timeout' if has_timeout else ''}"
                )
            case GapKind.TOO_NOISY:
                return f"search again on a quieter machine; here not even {MOST_ROUNDS} measurements of each would tell"
        return ""


def speedup_gap(trials: Sequence[Trial], objective: str, timeout_s: float | None = None) -> SpeedupGap | None:
    """Reason why there is no speed-up, or why it is open and how to find out; None if it is neither.

    Open: the fastest trial lost to the baseline only because its speed-up is uncertain. timeout_s: the search's,
    in seconds.
    """
    best = best_trial(trials, objective)
    if best is None or trials[0].number != 0:
        return SpeedupGap(GapKind.NOTHING_TO_COMPARE)
    baseline, final = trials[0], trials[0].final
    if not baseline.feasible and substitute(trials) in (None, best):
        return SpeedupGap(GapKind.NO_BASELINE, detail=f"{final.outcome} ({final.reason or 'no reason given'})")
    baseline = compared_with(trials) or baseline
    if speed_up(best, baseline, objective) is None:
        return SpeedupGap(GapKind.NO_SPEED)
    if best is baseline:
        rivals = (trial for trial, _ in disqualified(trials, objective) if not trial.disqualified_reason)
        return next((_open(trial, best, objective, timeout_s) for trial in rivals), None)
    return None


def _open(trial: Trial, baseline: Trial, objective: str, timeout_s: float | None) -> SpeedupGap | None:
    gain = speed_up(trial, baseline, objective)
    if gain is None:
        return None
    numbers = {"trial": trial.number, "low": gain.low, "high": gain.high}
    numbers |= {} if timeout_s is None else {"timeout_s": timeout_s}
    if not is_shown(trial, baseline):
        return SpeedupGap(GapKind.NOT_BESIDE, numbers if timeout_s else numbers | {"rounds": 2 * CONFIRMATION_ROUNDS})
    needed = pairs_needed(gain, min(len(trial.measurements), len(baseline.measurements)), MOST_ROUNDS)
    if needed is None:
        return SpeedupGap(GapKind.TOO_NOISY, numbers)
    return SpeedupGap(GapKind.TOO_FEW_ROUNDS, numbers | {"rounds": needed})
