"""Events of a study for loggers, as plain values: no variables of the process, no secrets, no folders."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core import Trial, Value
from autotune.core.units import finite
from autotune.report.claim import headline
from autotune.report.trial_text import interval_columns, speedup_fields
from autotune.space.substitute import compared_with
from autotune.study.objective import best_trial, told_speed_up
from autotune.study.result import SearchResult

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "autotune"
"""Of the runs, if the tracker's own variable names no other."""

FILES = ("summary.md", "report.html", "trials.csv", "best_*.json")
"""Of a report folder, uploaded to trackers that keep files."""


@dataclass(frozen=True)
class StudyEvent:
    """The beginning of a run."""

    name: str
    folder: Path  # the study's, for a logger's own files
    facts: Mapping[str, Value]  # the request, model, data and device
    run: str = ""  # the run to resume, or a new name for one
    resumed: bool = False


@dataclass(frozen=True)
class LoggedTrial:
    """One trial, as its own probe measured it."""

    number: int
    numbers: dict[str, float]  # unknown and infinite ones left out
    values: dict[str, Value]  # sizes and settings
    outcome: str

    @property
    def flat(self) -> dict[str, Any]:
        values = {f"configuration/{name}": value for name, value in self.values.items()}
        return {"trial": self.number, "outcome": self.outcome, **self.numbers, **values}


@dataclass(frozen=True)
class Ending:
    """The result of a study."""

    numbers: dict[str, float]  # speed-up, and the best trial's
    words: dict[str, str]  # headline, stop reason, configurations
    values: dict[str, Value]  # the best trial's sizes and settings
    table: "pd.DataFrame"  # one row a trial, with what was measured again
    files: Sequence[Path]  # of the report
    complete: bool  # whether the search came to its end

    @property
    def flat(self) -> dict[str, Any]:
        answer = {f"answer/{name}": value for name, value in (self.words | self.numbers).items()}
        return answer | {f"answer/configuration/{name}": value for name, value in self.values.items()}

    @property
    def table_arguments(self) -> dict[str, Any]:
        """Columns and rows for a tracker's own table, whose values know nothing of pandas' <NA>."""
        from autotune.report.formats import plain_rows

        return {"columns": list(self.table.columns), "data": [list(row.values()) for row in plain_rows(self.table)]}


def study_facts(result: SearchResult) -> dict[str, Value]:
    """The request, model, data and device."""
    request = result.request
    names = ("global_batch_size", "sequence_length", "objective", "sampler", "n_trials", "seed", "training_steps")
    facts: dict[str, Any] = {
        "model": result.model_text,
        "task": result.workload.task,
        "data": result.data_text,
        "device": result.device_text,
        "space": Path(request.space).name,
        **{name: getattr(request, name) for name in names},
        "memory_limit_bytes": result.memory_limit_bytes,
        "allowed_bytes": result.allowed_bytes,
        **{f"version_{name}": version for name, version in result.environment.versions.items()},
    }
    return {name: value for name, value in facts.items() if value is not None}


def rows(
    trials: Sequence[Trial],
    objective: str,
    max_gain: Mapping[int, float] | None = None,
    numbers: Collection[int] | None = None,
) -> Iterator[LoggedTrial]:
    """A row for each trial, or for those of these numbers alone, by what its own probe measured.

    What is measured again comes later and is in the ending's table: the rows of a study are the same, logged while it runs or
    afterwards. max_gain: trial number -> share by which something untested could still beat the best before it.
    """
    probed = [replace(trial, confirmations=(), disqualified_reason="") for trial in trials]
    for count, trial in enumerate(probed, start=1):
        if numbers is None or trial.number in numbers:
            yield _row(trial, probed[:count], objective, (max_gain or {}).get(trial.number))


def _row(trial: Trial, so_far: Sequence[Trial], objective: str, max_gain: float | None) -> LoggedTrial:
    measurement, best, compared = trial.measurement, best_trial(so_far, objective), compared_with(so_far)
    speedup = told_speed_up(best, compared, objective) if best is not None and compared is not None else None
    numbers = {
        **interval_columns("samples_per_second", trial.samples_per_second),
        "peak_bytes": measurement.peak_bytes,
        "fits": measurement.feasible,
        "above_allowed": measurement.fits,
        "probe_seconds": measurement.probe_seconds,
        "fastest_samples_per_second": best and best.samples_per_second,
        "fastest_peak_bytes": best and best.peak_bytes,
        "speedup_so_far": speedup,
        "untried_could_win": max_gain,
    }
    return LoggedTrial(
        trial.number, _finite(numbers), trial.configuration.sizes_and_settings, measurement.outcome.value
    )


def _finite(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers among these values."""
    return {name: number for name, value in numbers.items() if (number := finite(value)) is not None}


def ending(result: SearchResult, folder: Path) -> Ending:
    """The ending of a study whose report is in this folder."""
    from autotune.report.table import frame

    best, words = result.best_trial, {"headline": headline(result), "statement": result.stop_reason}
    if result.baseline_trial is not None:
        words["baseline"] = str(result.baseline_trial.configuration)
    numbers = {name: value for name, value in speedup_fields(result).items() if name != "speedup_gap"}
    if best is not None:
        words["best"] = str(best.configuration)
        numbers |= {"best_trial": best.number, **interval_columns("best_samples_per_second", best.samples_per_second)}
        numbers["best_peak_bytes"] = best.peak_bytes
    return Ending(
        numbers=_finite(numbers),
        words=words,
        values=best.configuration.sizes_and_settings if best is not None else {},
        table=frame(result.trials, result.utilizations, result.request.objective, result.refuted),
        files=sorted(path for name in FILES for path in folder.glob(name)),
        complete=result.complete,
    )
