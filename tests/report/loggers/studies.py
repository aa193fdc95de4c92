"""Studies to tell loggers of: ready-study results, told trial by trial as a search does."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.commands.result import TuningResult
from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.trial import Trial
from autotune.report.loggers.guarded import LoggerGroup
from autotune.study.plan import Progress, ProgressKind
from tests import makers

SECRET = "wandb-offline-secret-0123456789"


def result(*names: str, trials: Sequence[Trial] | None = None) -> TuningResult:
    """A finished search of three trials that is told to these loggers."""
    study = makers.result(None if trials is None else list(trials))
    return replace(study, request=replace(study.request, report_to=names))


def begun(study: TuningResult, folder: Path) -> LoggerGroup:
    """Its loggers, started in this folder as a search starts them: with no trial yet."""
    folder.mkdir(exist_ok=True)
    loggers = LoggerGroup(study.request.report_to, study.request.objective, folder)
    loggers.start(replace(study, trials=(), stop=StopReason(StopKind.INTERRUPTED)))
    return loggers


def told(study: TuningResult, folder: Path, *, already: int = 0) -> LoggerGroup:
    """Tell the whole study, of which `already` trials are taken up from before."""
    loggers = begun(study, folder)
    watch = loggers.watching(lambda progress: None)
    trials = tuple(study.trials)
    if already:
        watch(Progress(ProgressKind.RESUMED, trials[:already]))
    for at in range(already, len(trials)):
        number = trials[at].number
        watch(Progress(ProgressKind.PROBING, trials[:at], number=number, max_gain=0.5 / (1 + number)))
        watch(Progress(ProgressKind.TRIAL, trials[: at + 1], number=number, trial=trials[at]))
    study.save(folder)
    loggers.finish(study)
    assert not loggers.problems
    return loggers


def holds(folder: Path, text: str) -> list[str]:
    """Files below the folder in which this text stands."""
    needle = text.encode()
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [str(path) for path in files if not path.is_symlink() and needle in path.read_bytes()]
