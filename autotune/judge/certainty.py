"""Reasons why a speed-up is missing or open, and advice."""

from dataclasses import dataclass

from autotune.core.reason import Kind, Reason
from autotune.core.request import CONFIRMATION_ROUNDS
from autotune.core.trial import Trial
from autotune.judge.claim import pairs_needed
from autotune.judge.constants import LOOKS
from autotune.judge.standing import Standing

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
        """Text for people, with what would tell."""
        return ": ".join(filter(None, (super().text, self.advice)))

    @property
    def rounds(self) -> int | None:
        """Pairs that would tell; None if that is unknown."""
        return int(self.numbers["rounds"]) if "rounds" in self.numbers else None

    @property
    def advice(self) -> str:
        """Advice on how to find out; empty if nothing was measured that could be compared."""
        rounds, has_timeout = f"--confirmation-rounds {self.rounds}", "timeout_s" in self.numbers
        match self.kind:
            case GapKind.NOT_BESIDE:
                how = "a longer --timeout" if has_timeout else rounds
                return f"measure it in pairs with the baseline by the same command and {how}"
            case GapKind.TOO_FEW_ROUNDS:
                return (
                    f"about {self.rounds} pairs of measurements would tell here, fewer on a quieter machine: "
                    f"the same command with {rounds}{' and a longer --timeout' if has_timeout else ''}"
                )
            case GapKind.TOO_NOISY:
                return f"search again on a quieter machine; here not even {max(LOOKS)} pairs of measurements would tell"
        return ""


def speedup_gap(standing: Standing, timeout_s: float | None = None) -> SpeedupGap | None:
    """Reason why there is no speed-up, or why it is open and how to find out; None if it is neither.

    Open: the fastest trial lost to the baseline only because its speed-up is uncertain. timeout_s: the search's,
    in seconds.
    """
    best, baseline = standing.answer, standing.baseline
    if best is None or baseline is None:
        return SpeedupGap(GapKind.NOTHING_TO_COMPARE)
    if not baseline.feasible and standing.substitute in (None, best):
        final = baseline.final
        return SpeedupGap(GapKind.NO_BASELINE, detail=f"{final.outcome} ({final.reason or 'no reason given'})")
    if standing.gain(best) is None:
        return SpeedupGap(GapKind.NO_SPEED)
    if best is standing.compared:
        rivals = (trial for trial, _ in standing.disqualified if not trial.disqualified_reason)
        return next((_open(trial, standing, timeout_s) for trial in rivals), None)
    return None


def _open(trial: Trial, standing: Standing, timeout_s: float | None) -> SpeedupGap | None:
    gain = standing.gain(trial)
    if gain is None:
        return None
    numbers = {"trial": trial.number, "low": gain.low, "high": gain.high}
    numbers |= {} if timeout_s is None else {"timeout_s": timeout_s}
    if not standing.is_shown(trial):
        return SpeedupGap(GapKind.NOT_BESIDE, numbers if timeout_s else numbers | {"rounds": 2 * CONFIRMATION_ROUNDS})
    needed = pairs_needed(gain, standing.pairs(trial))
    if needed is None:
        return SpeedupGap(GapKind.TOO_NOISY, numbers)
    return SpeedupGap(GapKind.TOO_FEW_ROUNDS, numbers | {"rounds": needed})
