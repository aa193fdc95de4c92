"""Trackers of experiments for `--report-to`: Optuna callbacks, one run a study, and none of them can lose a search.

Called with a trial that has ended, a tracker logs the configuration, the objective, the peak and whether it fits, at the trial's
number as the step. The tracker's library is imported here alone.
"""

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import optuna
from optuna.trial import FrozenTrial

from autotune.core.note import Note, NoteKind
from autotune.core.paths import scrubbed
from autotune.report.claim import headline
from autotune.report.trial_text import speedup_fields
from autotune.study.result import SearchResult
from autotune.study.store import TENSORBOARD

PROJECT, RUN, REPORTED = "autotune", "run", "reported"
"""Project of the runs, if the tracker's variable names no other; the study's attributes: a run's name -> its id, and the
numbers of the trials that it has."""

PATIENCE_S = 60.0
"""Timeout of one call of a tracker; its library retries within that."""

_LOGIN = re.compile(r"//[^\s/]*@")
_STORE = re.compile(r"\b((?:file|sqlite)[\w+]*:)/\S*/")


class Run(NamedTuple):
    """A run of a tracker: its study's name and folder, and the id of the run, kept over a resume."""

    name: str
    folder: Path
    id: str


class Tracker(Protocol):
    """An Optuna callback with an end. Both methods may raise anything, or hang."""

    def __call__(self, _: optuna.Study, trial: FrozenTrial) -> None:
        """Log a trial that has ended."""

    def close(self, answer: Mapping[str, Any]) -> None:
        """Log the answer of the search, and end the run."""


class TensorBoard:
    """A row of the HParams table and the scalars of each trial, in the study's folder."""

    def __init__(self, run: Run) -> None:
        self.folder = run.folder / TENSORBOARD

    def __call__(self, _: optuna.Study, trial: FrozenTrial) -> None:
        with self._writer() as writer:
            settings, numbers = _logged(trial)
            writer.add_hparams(settings, numbers, run_name=f"trial-{trial.number:04d}", global_step=trial.number)

    def close(self, answer: Mapping[str, Any]) -> None:
        with self._writer() as writer:
            writer.add_text("answer", "  \n".join(f"{name}: {value}" for name, value in answer.items()))

    def _writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder))


class Wandb:
    """A run of its own, whichever run the process has, online or offline as `WANDB_MODE` says; no facts of the machine."""

    def __init__(self, run: Run) -> None:
        import wandb

        private = dict.fromkeys(("disable_git", "disable_code", "disable_job_creation", "x_disable_stats"), True)
        private |= dict.fromkeys(("x_disable_meta", "x_disable_machine_info", "silent"), True)
        settings = wandb.Settings(console="off", host=PROJECT, init_timeout=45, x_save_requirements=False, **private)
        self.run = wandb.init(
            project=settings.project or PROJECT,
            name=run.name,
            id=run.id,
            resume=None if settings.mode == "offline" else "allow",
            settings=settings,
            reinit="create_new",
        )

    def __call__(self, _: optuna.Study, trial: FrozenTrial) -> None:
        settings, numbers = _logged(trial)
        self.run.log(settings | numbers, step=trial.number, commit=True)

    def close(self, answer: Mapping[str, Any]) -> None:
        self.run.summary.update(dict(answer))
        self.run.finish()


class Mlflow:
    """A run whose metrics are the trials' numbers, where `MLFLOW_TRACKING_URI` says; the process's active run is left alone."""

    def __init__(self, run: Run) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient()
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        existing = self.client.get_experiment_by_name(project)
        experiment = existing.experiment_id if existing else self.client.create_experiment(project)
        before = self.client.search_runs([experiment], f"tags.{PROJECT} = '{run.id}'")
        self.run = (
            before[0] if before else self.client.create_run(experiment, run_name=run.name, tags={PROJECT: run.id})
        )

    def __call__(self, _: optuna.Study, trial: FrozenTrial) -> None:
        settings, numbers = _logged(trial)
        for name, value in numbers.items():
            self.client.log_metric(self.run.info.run_id, name, value, step=trial.number)
        self.client.log_dict(self.run.info.run_id, settings, f"trial-{trial.number:04d}.json")

    def close(self, answer: Mapping[str, Any]) -> None:
        for name, value in answer.items():
            self.client.set_tag(self.run.info.run_id, name, value)
        self.client.set_terminated(self.run.info.run_id)


class Trackio:
    """A run on this machine, or where `TRACKIO_SPACE_ID` or `TRACKIO_SERVER_URL` says."""

    def __init__(self, run: Run) -> None:
        import trackio

        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self.run = trackio.init(project=PROJECT, name=f"{run.name}-{run.id[:6]}", resume="allow", **quiet)

    def __call__(self, _: optuna.Study, trial: FrozenTrial) -> None:
        settings, numbers = _logged(trial)
        self.run.log(settings | numbers, step=trial.number)

    def close(self, answer: Mapping[str, Any]) -> None:
        self.run.log(dict(answer))
        self.run.finish()


TRACKERS: Mapping[str, Callable[[Run], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def answer_of(result: SearchResult) -> dict[str, Any]:
    """The answer of a search, as trackers log it."""
    best = result.best_trial
    settings = best.configuration.sizes_and_settings if best else {}
    speedups = {name: value for name, value in speedup_fields(result).items() if value is not None}
    return {"headline": headline(result), "statement": result.stop_reason, **speedups, **settings}


def _logged(trial: FrozenTrial) -> tuple[dict[str, Any], dict[str, float]]:
    """(Sizes and settings, numbers) of a trial that has ended."""
    numbers = {"objective": trial.value, "peak_bytes": trial.user_attrs.get("peak_bytes"), **trial.constraints}
    settings = {"outcome": trial.user_attrs.get("outcome", "failed"), **trial.user_attrs.get("configuration", {})}
    return settings, {name: float(value) for name, value in numbers.items() if value is not None}


class Trackers:
    """The trackers of a search by name; one that fails or hangs is dropped with one warning.

    The study's attributes say which trials each has, so that a resumed search logs a trial once, in the same run. problems: a
    note on each tracker that was dropped, fit for a report: of an error its type alone.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.folder = folder
        self.problems: list[Note] = []
        self._waiting = [*names]
        self._trackers: dict[str, Tracker] = {}

    def log(self, study: optuna.Study) -> None:
        """Log every trial that has ended and is not logged yet, in the order of their numbers; starts the runs at first."""
        while self._waiting:
            self._start(self._waiting.pop(0), study)
        if not self._trackers:
            return
        ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
        for name, tracker in list(self._trackers.items()):
            reported = study.user_attrs.get(f"{REPORTED}:{name}", [])
            for trial in ended:
                if trial.number in reported or name not in self._trackers:
                    continue
                for _ in self._attempt(name, partial(tracker, study, trial)):
                    reported = [*reported, trial.number]
                    study.set_user_attr(f"{REPORTED}:{name}", reported)

    def _start(self, name: str, study: optuna.Study) -> None:
        run = Run(self.folder.resolve().name, self.folder, study.user_attrs.get(f"{RUN}:{name}") or uuid4().hex[:12])
        study.set_user_attr(f"{RUN}:{name}", run.id)
        for tracker in self._attempt(name, partial(TRACKERS[name], run)):
            self._trackers[name] = tracker

    def close(self, study: optuna.Study, answer: Mapping[str, Any]) -> None:
        """Log what is left and the answer, and end the runs."""
        self.log(study)
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, partial(tracker.close, answer))
        self._trackers.clear()

    def _attempt(self, name: str, act: Callable[[], Any]) -> list[Any]:
        """Run `act` in a thread: its result in a list, empty if it failed or came too late, and the tracker is dropped."""
        results: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                results.put((act(), None))
            except BaseException as error:  # a library may even try to end the process
                results.put((None, error))

        with contextlib.redirect_stdout(sys.stderr):
            threading.Thread(target=run, name=f"autotune-{name}", daemon=True).start()
            try:
                result, error = results.get(timeout=PATIENCE_S)
            except Empty:
                return self._drop(name, f"no answer in {PATIENCE_S:.0f} s")
        return [result] if error is None else self._drop(name, type(error).__name__, without_secrets(str(error)))

    def _drop(self, name: str, what: str, detail: str = "") -> list[Any]:
        self._trackers.pop(name, None)
        self.problems.append(Note(NoteKind.LOGGER, detail=f"{name} ({what})"))
        print(f"Warning: {Note(NoteKind.LOGGER, detail=f'{name} ({what}: {detail})')}", file=sys.stderr)
        return []


def without_secrets(text: str) -> str:
    """An error message of a tracker's library on one line, without user names and passwords of URLs, folders and tokens."""
    line = " ".join(text.split())[:2000]
    return scrubbed(_STORE.sub(r"\1…/", _LOGIN.sub("//…@", line)))[:300]
