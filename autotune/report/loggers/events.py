"""What loggers are told of a study, as plain values: no variables of the process, no secrets, no folders."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.configuration import Value
from autotune.core.request import TuningRequest
from autotune.core.trial import Trial
from autotune.core.units import finite
from autotune.report.plain import speedup_fields
from autotune.report.summary import headline
from autotune.study.objective import best_trial, speed_up
from autotune.study.result import SearchResult

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "autotune"
"""Of the runs, where the tracker's own variable names no other."""

FILES = ("summary.md", "report.html", "trials.csv", "best_*.json")
"""Of a report folder, handed to trackers that keep files."""


@dataclass(frozen=True)
class Study:
    """What a run begins with. facts: what was asked, of what, and where; folder: the study's, for a logger's own files.

    run: the run to go on with (resumed), else a new name for one.
    """

    name: str
    folder: Path
    facts: Mapping[str, Value]
    run: str = ""
    resumed: bool = False


@dataclass(frozen=True)
class Row:
    """One trial: `numbers` by name (unknown and endless ones left out), and the configuration's `values`."""

    number: int
    numbers: dict[str, float]
    values: dict[str, Value]
    outcome: str


@dataclass(frozen=True)
class Ending:
    """What came of the study. numbers: speed-up and the best trial's, by name; words: headline, statement, configurations.

    table: one row a trial, confirmations counted; files: of the report; complete: whether the search came to its end.
    """

    numbers: dict[str, float]
    words: dict[str, str]
    values: dict[str, Value] = field(default_factory=dict)
    table: "pd.DataFrame | None" = None
    files: Sequence[Path] = ()
    complete: bool = True


def study_facts(request: TuningRequest, result: SearchResult) -> dict[str, Value]:
    """What was asked, of what, and where."""
    told: dict[str, Any] = {
        "model": result.model_text,
        "task": result.workload.task,
        "data": result.data_text,
        "device": result.device_text,
        "global_batch_size": request.global_batch_size,
        "sequence_length": request.sequence_length,
        "objective": request.objective,
        "space": Path(request.space).name,
        "sampler": request.sampler,
        "n_trials": request.n_trials,
        "seed": request.seed,
        "training_steps": request.training_steps,
        "memory_limit_bytes": result.memory_limit_bytes,
        "allowed_bytes": result.allowed_bytes,
        **{f"version_{name}": version for name, version in result.environment.versions.items()},
    }
    return {name: value for name, value in told.items() if value is not None}


def rows(
    trials: Sequence[Trial], objective: str, max_gain_if_fits: Mapping[int, float] | None = None, after: int = -1
) -> Iterator[Row]:
    """A row for each trial whose number is above `after`, by what its own probe measured.

    Confirmations come later and are in the ending's table: the rows of a study are the same, told while it runs or
    afterwards. could_win: number -> share by which something untried could still beat the best before that probe.
    """
    probed = [replace(trial, confirmations=(), disqualified_reason="") for trial in trials]
    for count, trial in enumerate(probed, start=1):
        if trial.number > after:
            yield _row(trial, probed[:count], objective, (max_gain_if_fits or {}).get(trial.number))


def _row(trial: Trial, so_far: Sequence[Trial], objective: str, max_gain_if_fits: float | None) -> Row:
    measured, speed = trial.measurement, trial.samples_per_second
    best, first = best_trial(so_far, objective), so_far[0]
    so_much = speed_up(best, first, objective)[0] if best is not None and first.number == 0 else None
    numbers = {
        "samples_per_second": speed,
        "samples_per_second_low": speed and speed.low,
        "samples_per_second_high": speed and speed.high,
        "peak_bytes": measured.peak_bytes,
        "feasible": measured.feasible,
        "fits": measured.fits,
        "probe_seconds": measured.probe_seconds,
        "best_samples_per_second": best and best.samples_per_second,
        "best_peak_bytes": best and best.peak_bytes,
        "speedup_so_far": so_much,
        "untried_could_win": max_gain_if_fits,
    }
    return Row(trial.number, known(numbers), configured(trial), measured.outcome.value)


def configured(trial: Trial) -> dict[str, Value]:
    """A trial's sizes and settings by name."""
    configuration = trial.configuration
    return {
        **configuration.values,
        "gradient_accumulation_steps": configuration.gradient_accumulation_steps,
        "data_parallel_size": configuration.data_parallel_size,
    }


def known(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers, and finite."""
    return {name: number for name, value in numbers.items() if (number := finite(value)) is not None}


def ending(result: SearchResult, folder: Path, complete: bool) -> Ending:
    """What came of a study whose report lies in this folder."""
    from autotune.report.table import frame

    best, words = result.best_trial, {"headline": headline(result), "statement": result.stop_reason}
    if result.baseline_trial is not None:
        words["baseline"] = str(result.baseline_trial.configuration)
    numbers = {name: value for name, value in speedup_fields(result).items() if name != "speedup_reason"}
    if best is not None:
        words["best"] = str(best.configuration)
        speed = best.samples_per_second
        numbers |= {
            "best_trial": best.number,
            "best_samples_per_second": speed,
            "best_samples_per_second_low": speed and speed.low,
            "best_samples_per_second_high": speed and speed.high,
            "best_peak_bytes": best.peak_bytes,
        }
    return Ending(
        numbers=known(numbers),
        words=words,
        values=configured(best) if best is not None else {},
        table=frame(result.trials, result.utilizations),
        files=sorted(path for name in FILES for path in folder.glob(name)),
        complete=complete,
    )
