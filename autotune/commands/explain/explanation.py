"""Reckoning: what a study's speed-up is made of, as values and as plain data.

confirmed speed-up  ~  gain x gain x gain of the path's legs;  beside it each setting taken back alone, and why
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.commands.explain.breakdown import MemoryBreakdown
from autotune.commands.explain.path import Ablation, PathStep, interaction, product
from autotune.commands.explain.reasons import Alternative, change_text, changes, gain_text, step_split, verdict
from autotune.commands.explain.remeasure import Remeasured
from autotune.core.interval import Interval
from autotune.core.trial import Trial
from autotune.core.units import finite
from autotune.report.summary import outcome_text, speed_line
from autotune.space.settings import SETTINGS
from autotune.space.utilization import Utilization

ORDER = (
    "first what the answer does not run without (what saves memory must come before what needs it), then by what the "
    "answer loses without each in the first round, largest first; what did not run yet waited"
)
"""How the settings of the path are ordered, for people."""


@dataclass(frozen=True)
class Explanation:
    """Where the speed-up of a study comes from.

    baseline, best: the study's trials. retraced: what was measured again, None where the baseline is the answer.
    confirmed: the study's own speed-up, None with the reason where there is none. bound, bound_before: of answer and
    baseline, its kind and a sentence; empty where no step was timed.
    utilization: of baseline and answer. alternatives: the values that the answer does not have. fixed: settings that were not
    searched.
    """

    name: str
    baseline: Trial
    best: Trial
    objective: str
    retraced: Remeasured | None
    confirmed: Interval | None
    confirmed_reason: str = ""
    bound: tuple[str, str] = ("", "")
    bound_before: tuple[str, str] = ("", "")
    anatomy: MemoryBreakdown = field(default_factory=MemoryBreakdown)
    utilization: Mapping[str, Utilization | None] = field(default_factory=dict)
    alternatives: Sequence[Alternative] = ()
    fixed: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        """One line: speed and speed-up of the answer, and what the gains come to."""
        return f"<Explanation of {self.name}: {speed_line(self.best, self.baseline, self.objective)}. {self.sentence}>"

    @property
    def legs(self) -> tuple[PathStep, ...]:
        """The path, from the baseline (or the first configuration that runs) to the answer."""
        return self.retraced.legs if self.retraced else ()

    @property
    def product(self) -> float | None:
        """The gains of the path multiplied; None where there is no path."""
        return product([leg.gain for leg in self.legs])

    @property
    def total(self) -> Interval | None:
        """Speed of the answer / speed of the path's start, as measured again."""
        return self.retraced.total.gain if self.retraced else None

    @property
    def from_the_baseline(self) -> bool:
        """Whether the path starts at the baseline itself: not where that does not run."""
        return self.retraced is not None and self.retraced.start.configuration == self.baseline.configuration

    @property
    def within(self) -> bool | None:
        """Whether the product of the gains lies in the interval of the confirmed speed-up; None: nothing to compare."""
        if self.product is None or self.confirmed is None or not self.from_the_baseline:
            return None
        return self.confirmed.low <= self.product <= self.confirmed.high

    @property
    def together(self) -> Interval | None:
        """What is gained only with several settings together: see `path.interaction`."""
        return interaction(self.retraced.total, self.retraced.backs, self.objective) if self.retraced else None

    @property
    def sentence(self) -> str:
        """Whether the gains make up the speed-up that was confirmed."""
        if self.retraced is None:
            return "Your own settings are the best that was found: there is nothing to explain."
        if not self.retraced.answer.feasible:
            return f"The answer did not run this time ({outcome_text(self.retraced.answer)}): no path was measured."
        if self.product is None or self.total is None:
            return "Only the answer itself runs: nothing on the way to it can be compared."
        said = f"The gains multiply to {gain_text(self.total)}"
        if self.within is None:
            why = self.confirmed_reason or "the path does not start at your settings"
            return f"{said}; there is no confirmed speed-up to hold against it: {why}."
        assert self.confirmed is not None
        if self.within:
            return f"{said}, inside the confirmed {gain_text(self.confirmed)}."
        apart = self.total.low > self.confirmed.high or self.total.high < self.confirmed.low
        overlap = "and the intervals lie apart" if apart else "but the intervals overlap"
        return f"{said}, outside the confirmed {gain_text(self.confirmed)}, {overlap}."

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints. Speeds are samples (or tokens) / second, gains ratios of them, bytes and seconds."""
        again = self.retraced
        return {
            "name": self.name,
            "sentence": self.sentence,
            "product": self.product,
            **_told_gain("total", self.total),
            **_told_gain("confirmed", self.confirmed),
            "confirmed_reason": self.confirmed_reason,
            "within": self.within,
            "rounds": again.rounds if again else 0,
            "order": ORDER,
            "baseline": _told_trial(self.baseline),
            "answer": _told_trial(self.best),
            "start": _told_trial(again.start) if again else None,
            "starts_at_the_baseline": self.from_the_baseline,
            "answer_again": _told_trial(again.answer) if again else None,
            "path": [_told_leg(leg) for leg in self.legs],
            "taken_back": [_told_back(one, again.answer) for one in again.backs] if again else [],
            "taken_back_product": product([one.gain for one in again.backs]) if again else None,
            **_told_gain("together", self.together),
            "did_not_run": [_told_failure(one, again) for one in again.failed] if again else [],
            "bound": self.bound[0],
            "bound_reason": self.bound[1],
            "bound_before": self.bound_before[0],
            "bound_before_reason": self.bound_before[1],
            "step": {"baseline": step_split(self.baseline.final), "answer": step_split(self.best.final)},
            "memory": dict(self.anatomy.peaks),
            "memory_problems": list(self.anatomy.problems),
            "utilization": {name: use and use.of_measured for name, use in self.utilization.items()},
            "mfu": {name: use and use.mfu for name, use in self.utilization.items()},
            "levers": self._settings(),
            "alternatives": [
                {"lever": one.setting, "value": one.value, "trial": one.trial, "why": one.why}
                | _told_gain("times_as_fast", one.times_as_fast)
                for one in self.alternatives
            ],
            "notes": list(self.notes),
        }

    def _settings(self) -> dict[str, dict[str, Any]]:
        own = self.baseline.configuration.values
        return {
            name: {
                "value": value,
                "baseline": own.get(name),
                "fixed": name in self.fixed,
                "summary": SETTINGS[name].summary,
            }
            for name, value in self.best.configuration.values.items()
        }


# Plain data -------------------------------------------------------------------------------------------------------


def _told_gain(name: str, gain: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if gain is None else (gain.low, finite(gain.high))
    return {name: None if gain is None else float(gain), f"{name}_low": low, f"{name}_high": high}


def _told_trial(trial: Trial) -> dict[str, Any]:
    speed = trial.samples_per_second
    return {
        "configuration": trial.configuration.to_dict(),
        "text": str(trial.configuration),
        "outcome": outcome_text(trial),
        **_told_gain("samples_per_second", speed),
        "peak_bytes": trial.peak_bytes,
        "stage_peak_bytes": dict(trial.measurement.stage_peak_bytes),
        "step": step_split(trial.final),
        "warnings": list(trial.final.warnings),
    }


def _told_leg(leg: PathStep) -> dict[str, Any]:
    changed = change_text(leg.settings, leg.before.configuration, leg.after.configuration)
    why = changes(leg.before, leg.after) if leg.gain is not None else ""
    return {
        "levers": list(leg.settings),
        "change": changed,
        "together": len(leg.settings) > 1,
        **_told_gain("gain", leg.gain),
        "verdict": verdict(leg.gain),
        "why": why,
        "sentence": f"{changed}: {gain_text(leg.gain)}{f': {why}' if why else ''}",
        "after": _told_trial(leg.after),
    }


def _told_back(one: Ablation, answer: Trial) -> dict[str, Any]:
    """What the answer has in place of the setting's own value, and what that is worth there."""
    changed = change_text((one.setting, *one.also), one.without.configuration, answer.configuration)
    return {
        "lever": one.setting,
        "also": list(one.also),
        "change": changed,
        **_told_gain("gain", one.gain),
        "verdict": verdict(one.gain) if one.gain is not None else "needed",
        "why": changes(one.without, answer) if one.gain is not None else outcome_text(one.without),
        "without": _told_trial(one.without),
    }


def _told_failure(trial: Trial, again: Remeasured) -> dict[str, Any]:
    number = again.settled.get(trial.configuration)
    known = "" if number is None else f" (not run again: trial {number} of the search tells)"
    return {"configuration": trial.configuration.to_dict(), "text": str(trial.configuration)} | {
        "outcome": f"{outcome_text(trial)}{known}"
    }
