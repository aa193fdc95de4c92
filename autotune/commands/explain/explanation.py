"""Explanation of a study's speed-up, as values and as plain data.

proven speed-up  ~  gain x gain x gain of the path's steps; and the ablations of the answer, with reasons
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.commands.explain.path import Ablation, PathStep, product
from autotune.commands.explain.reasons import Bound, step_split
from autotune.commands.explain.remeasure import Remeasured
from autotune.core import Interval, Trial
from autotune.core.note import Note
from autotune.core.units import counted
from autotune.judge.certainty import SpeedupGap
from autotune.judge.standing import Standing
from autotune.memory.peak import MemoryPeak
from autotune.report.trial_text import interval_fields, speed_line
from autotune.space.utilization import Utilization


@dataclass(frozen=True)
class Explanation:
    """Explanation of the speed-up of a study.

    baseline, best: the study's trials. remeasured: None if the baseline is the best (kept: why, in sentences). confirmed: the
    study's speed-up, None for confirmed_gap. bounds, memory (as estimated), utilization: of `baseline` and `answer`.
    """

    name: str
    baseline: Trial
    best: Trial
    objective: str
    remeasured: Remeasured | None
    confirmed: Interval | None
    confirmed_gap: SpeedupGap | None = None
    bounds: Mapping[str, Bound | None] = field(default_factory=dict)
    memory: Mapping[str, MemoryPeak | None] = field(default_factory=dict)
    utilization: Mapping[str, Utilization | None] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    kept: str = ""

    def __repr__(self) -> str:
        """One line: speed and speed-up of the best, and the product of the gains."""
        gains = "" if self.product is None else f"; {counted(len(self.steps), 'step')} multiply to {self.product:.2f}x"
        line = speed_line(self.best, Standing((self.baseline, self.best), self.objective))
        return f"<Explanation of {self.name}: {line}{gains}>"

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
        """Product of the path's gains; None if there is no path."""
        return product([step.gain for step in self.steps])

    @property
    def total(self) -> Interval | None:
        """Speed of the answer / speed of the path's start, as measured again."""
        return self.remeasured.total.gain if self.remeasured else None

    @property
    def from_the_baseline(self) -> bool:
        """True if the path starts at the baseline itself: not if that does not run."""
        return self.remeasured is not None and self.remeasured.start.configuration == self.baseline.configuration

    @property
    def within(self) -> bool | None:
        """True if the product of the gains is in the interval of the proven speed-up; None: nothing to compare."""
        if self.product is None or self.confirmed is None or not self.from_the_baseline:
            return None
        return self.confirmed.low <= self.product <= self.confirmed.high

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints. Speeds are samples (or tokens) / second, gains ratios of them, bytes, seconds.

        did_not_run: implied_by is the study's trial that says so.
        """
        again = self.remeasured
        return {
            "name": self.name,
            "product": self.product,
            **interval_fields("total", self.total),
            **interval_fields("confirmed", self.confirmed),
            "confirmed_gap": self.confirmed_gap and self.confirmed_gap.to_dict(),
            "within": self.within,
            "rounds": again.rounds if again else 0,
            "baseline": _trial_dict(self.baseline),
            "answer": _trial_dict(self.best),
            "start": _trial_dict(again.start) if again else None,
            "answer_again": _trial_dict(again.answer) if again else None,
            "path": [
                {
                    "settings": list(step.settings),
                    **interval_fields("gain", step.gain),
                    "after": _trial_dict(step.after),
                }
                for step in self.steps
            ],
            "taken_back": [
                {
                    "settings": [row.setting, *row.also],
                    **interval_fields("gain", row.gain),
                    "without": _trial_dict(row.without),
                }
                for row in self.ablations
            ],
            "did_not_run": [
                _trial_dict(trial) | {"implied_by": again.implied.get(trial.configuration) if again else None}
                for trial in (again.failed if again else ())
            ],
            "bounds": {name: bound and bound.to_dict() for name, bound in self.bounds.items()},
            "memory": {name: peak and peak.to_dict() for name, peak in self.memory.items()},
            "utilization": {name: use and use.of_measured for name, use in self.utilization.items()},
            "mfu": {name: use and use.mfu for name, use in self.utilization.items()},
            "notes": [note.to_dict() for note in self.notes],
        }


def _trial_dict(trial: Trial) -> dict[str, Any]:
    return {
        "configuration": trial.configuration.to_dict(),
        "outcome": trial.final.outcome.value,
        "reason": trial.final.reason,
        **interval_fields("samples_per_second", trial.samples_per_second),
        "peak_bytes": trial.peak_bytes,
        "stage_peak_bytes": dict(trial.measurement.stage_peak_bytes),
        "step": step_split(trial.final),
        "warnings": [warning.to_dict() for warning in trial.final.warnings],
    }
