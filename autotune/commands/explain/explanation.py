"""Explanation of a study's speed-up, as values and as plain data.

proven speed-up  ~  gain x gain x gain of the path's steps; and the ablations of the answer, with reasons
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.commands.explain.path import Ablation, PathStep, product
from autotune.commands.explain.reasons import change_text, changes, step_split, verdict
from autotune.commands.explain.remeasure import Remeasured
from autotune.commands.layout import ratio_text
from autotune.core import Interval, Serializable, Trial
from autotune.report.trial_text import interval_fields, outcome_text, speed_line
from autotune.space.settings import SETTINGS
from autotune.space.utilization import Arithmetic, Utilization

ORDER = (
    "first settings without which the answer does not run (what saves memory precedes what needs it), then by the loss "
    "without each in the first round, largest first; what does not run yet comes later"
)
"""Order of the path's settings."""


@dataclass(frozen=True)
class MemoryBreakdown(Serializable):
    """peaks: name of a configuration -> `MemoryPeak.to_dict()`, None where it could not be traced (problems: why).

    arithmetic: operations of a sample, and of the device's fastest products.
    """

    peaks: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Where the speed-up of a study comes from.

    baseline, best: the study's trials. remeasured: None where the baseline is the best. confirmed: the study's speed-up, None
    for confirmed_reason. bound, bound_before: of best and baseline, as `reasons.bound` returns them. utilization: of
    `baseline` and `answer`. fixed: settings that were not searched.
    """

    name: str
    baseline: Trial
    best: Trial
    objective: str
    remeasured: Remeasured | None
    confirmed: Interval | None
    confirmed_reason: str = ""
    bound: tuple[str, str] = ("", "")
    bound_before: tuple[str, str] = ("", "")
    memory: MemoryBreakdown = field(default_factory=MemoryBreakdown)
    utilization: Mapping[str, Utilization | None] = field(default_factory=dict)
    fixed: Sequence[str] = ()
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        """One line: speed and speed-up of the best, and the product of the gains."""
        return f"<Explanation of {self.name}: {speed_line(self.best, self.baseline, self.objective)}. {self.sentence}>"

    @property
    def steps(self) -> tuple[PathStep, ...]:
        """The path, from the baseline (or the nearest configuration that runs) to the answer."""
        return self.remeasured.steps if self.remeasured else ()

    @property
    def ablations(self) -> tuple[Ablation, ...]:
        """The answer without each setting."""
        return self.remeasured.ablations if self.remeasured else ()

    @property
    def product(self) -> float | None:
        """Product of the path's gains; None where there is no path."""
        return product([step.gain for step in self.steps])

    @property
    def total(self) -> Interval | None:
        """Speed of the answer / speed of the path's start, as measured again."""
        return self.remeasured.total.gain if self.remeasured else None

    @property
    def from_the_baseline(self) -> bool:
        """Whether the path starts at the baseline itself: not where that does not run."""
        return self.remeasured is not None and self.remeasured.start.configuration == self.baseline.configuration

    @property
    def within(self) -> bool | None:
        """Whether the product of the gains is in the interval of the proven speed-up; None: nothing to compare."""
        if self.product is None or self.confirmed is None or not self.from_the_baseline:
            return None
        return self.confirmed.low <= self.product <= self.confirmed.high

    @property
    def sentence(self) -> str:
        """Whether the gains make up the proven speed-up."""
        if self.remeasured is None:
            return "Your own settings are the best that was found: there is nothing to explain."
        if not self.remeasured.answer.feasible:
            return f"The answer did not run this time ({outcome_text(self.remeasured.answer)}): no path was measured."
        if self.product is None or self.total is None:
            return "Only the answer itself runs: nothing on the way to it can be compared."
        gains = f"The gains multiply to {ratio_text(self.total)}"
        if self.within is None or self.confirmed is None:
            why = self.confirmed_reason or "the path does not start at your settings"
            return f"{gains}; there is no proven speed-up to compare it with: {why}."
        if self.within:
            return f"{gains}, inside the proven {ratio_text(self.confirmed)}."
        apart = self.total.low > self.confirmed.high or self.total.high < self.confirmed.low
        overlap = "and the intervals do not overlap" if apart else "but the intervals overlap"
        return f"{gains}, outside the proven {ratio_text(self.confirmed)}, {overlap}."

    def failure_text(self, trial: Trial) -> str:
        """Outcome of a configuration that did not run, with the study's trial that implies it."""
        number = self.remeasured and self.remeasured.implied.get(trial.configuration)
        implied = "" if number is None else f" (not run again: implied by trial {number} of the search)"
        return f"{outcome_text(trial)}{implied}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints. Speeds are samples (or tokens) / second, gains ratios of them, bytes, seconds."""
        again, values = self.remeasured, self.baseline.configuration.values
        return {
            "name": self.name,
            "sentence": self.sentence,
            "product": self.product,
            **interval_fields("total", self.total),
            **interval_fields("confirmed", self.confirmed),
            "confirmed_reason": self.confirmed_reason,
            "within": self.within,
            "rounds": again.rounds if again else 0,
            "order": ORDER,
            "baseline": _trial_dict(self.baseline),
            "answer": _trial_dict(self.best),
            "start": _trial_dict(again.start) if again else None,
            "starts_at_the_baseline": self.from_the_baseline,
            "answer_again": _trial_dict(again.answer) if again else None,
            "path": [
                {
                    "settings": list(step.settings),
                    "change": step_change(step),
                    "together": len(step.settings) > 1,
                    **interval_fields("gain", step.gain),
                    "verdict": verdict(step.gain),
                    "why": step_why(step),
                    "sentence": step_sentence(step),
                    "after": _trial_dict(step.after),
                }
                for step in self.steps
            ],
            "taken_back": [
                {
                    "setting": row.setting,
                    "also": list(row.also),
                    "change": ablation_change(row, self.best),
                    **interval_fields("gain", row.gain),
                    "verdict": verdict(row.gain) if row.gain is not None else "needed",
                    "why": changes(row.without, again.answer) if again and row.gain else outcome_text(row.without),
                    "without": _trial_dict(row.without),
                }
                for row in self.ablations
            ],
            "did_not_run": [
                {"configuration": trial.configuration.to_dict(), "text": str(trial.configuration)}
                | {"outcome": self.failure_text(trial)}
                for trial in (again.failed if again else ())
            ],
            "bound": self.bound[0],
            "bound_reason": self.bound[1],
            "bound_before": self.bound_before[0],
            "bound_before_reason": self.bound_before[1],
            "step": {"baseline": step_split(self.baseline.final), "answer": step_split(self.best.final)},
            "memory": dict(self.memory.peaks),
            "memory_problems": list(self.memory.problems),
            "utilization": {name: use and use.of_measured for name, use in self.utilization.items()},
            "mfu": {name: use and use.mfu for name, use in self.utilization.items()},
            "settings": {
                name: {
                    "value": value,
                    "baseline": values.get(name),
                    "fixed": name in self.fixed,
                    "summary": SETTINGS[name].summary,
                }
                for name, value in self.best.configuration.values.items()
            },
            "notes": list(self.notes),
        }


def step_change(step: PathStep) -> str:
    return change_text(step.settings, step.before.configuration, step.after.configuration)


def step_why(step: PathStep) -> str:
    """What the change did to step and memory; empty where that is unknown."""
    return changes(step.before, step.after) if step.gain is not None else ""


def step_sentence(step: PathStep) -> str:
    """Change, gain and reason."""
    why = step_why(step)
    return f"{step_change(step)}: {ratio_text(step.gain)}{f': {why}' if why else ''}"


def ablation_change(ablation: Ablation, answer: Trial) -> str:
    """The change from the configuration without the setting to the answer."""
    names = (ablation.setting, *ablation.also)
    return change_text(names, ablation.without.configuration, answer.configuration)


def _trial_dict(trial: Trial) -> dict[str, Any]:
    return {
        "configuration": trial.configuration.to_dict(),
        "text": str(trial.configuration),
        "outcome": outcome_text(trial),
        **interval_fields("samples_per_second", trial.samples_per_second),
        "peak_bytes": trial.peak_bytes,
        "stage_peak_bytes": dict(trial.measurement.stage_peak_bytes),
        "step": step_split(trial.final),
        "warnings": [warning.to_dict() for warning in trial.final.warnings],
    }
