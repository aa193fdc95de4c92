"""Loggers that cannot lose a search: one that fails or hangs is reported once and dropped."""

import contextlib
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from autotune.core import Trial, read_json, write_json
from autotune.core.note import Note, NoteKind
from autotune.core.paths import scrubbed
from autotune.report.loggers import Logger
from autotune.report.loggers.events import StudyEvent, ending, rows, study_facts
from autotune.study.plan import Progress, ProgressKind, Watch
from autotune.study.result import SearchResult
from autotune.study.store import RUNS, read_prospects

PATIENCE_S = 60.0
"""Timeout of one call of a logger; its library retries within that."""

_LOGIN = re.compile(r"//[^\s/]*@")
_STORE = re.compile(r"\b((?:file|sqlite)[\w+]*:)/\S*/")


@dataclass(frozen=True)
class LoggedRun:
    """A logger's run, and the trials that it has: up to the last one, all but the missing ones."""

    run: str
    last: int = -1
    missing: frozenset[int] = field(default_factory=frozenset)

    def with_trial(self, number: int) -> "LoggedRun":
        """The same with one trial more."""
        missing = (self.missing | {*range(self.last + 1, number)}) - {number}
        return replace(self, last=max(self.last, number), missing=missing)

    def further(self, trials: Sequence[Trial], is_over: bool) -> list[int]:
        """Numbers of the trials that it has not. Before the search is over none comes before one that still runs."""
        later = [trial.number for trial in trials if trial.number > self.last]
        whole = [number for place, number in enumerate(later, self.last + 1) if number == place]
        return [*sorted(self.missing & {trial.number for trial in trials}), *(later if is_over else whole)]

    def to_dict(self) -> dict[str, Any]:
        missing = {"missing": sorted(self.missing)} if self.missing else {}
        return {"run": self.run, "last": self.last, **missing}


class LoggerGroup:
    """The loggers of one study, from `start` on; no method raises what a logger raised.

    A trial is logged once: what was logged is noted in the study's folder, so a resumed study resumes the same runs.
    problems: a note on each logger that was dropped, fit for a report: of an error its type alone.
    """

    def __init__(self, names: Sequence[str], objective: str, folder: Path) -> None:
        self._names, self._objective, self._folder = names, objective, folder
        self._runs = _read(folder / RUNS) if names else {}
        self._loggers: dict[str, Logger] = {}
        self._max_gain = _before_each(folder) if names else {}
        self.problems: list[Note] = []

    def start(self, result: SearchResult) -> None:
        """Begin or resume the run of every logger."""
        facts = study_facts(result)
        for name in self._names:
            for logger, logged in self._attempt(name, partial(self._started, name, facts)):
                self._loggers[name] = logger
                self._note(name, replace(logged, run=logger.run))

    def watching(self, watch: Watch) -> Watch:
        """The same watch, and every new trial logged after it."""

        def both(progress: Progress) -> None:
            watch(progress)
            if progress.kind is ProgressKind.STOPPING:  # from a signal's handler, maybe while a trial is being logged
                return
            if progress.kind is ProgressKind.PROBING and progress.number is not None and progress.max_gain is not None:
                self._max_gain[progress.number] = progress.max_gain
            self.log(progress.trials)

        return both if self._loggers else watch

    def log(self, trials: Sequence[Trial], is_over: bool = False) -> None:
        """Log every trial that a logger has not yet logged, in the order of their numbers.

        Of several devices a later trial may end first: it waits, as trackers know no step before the last one.
        """
        for name in list(self._loggers):
            numbers = self._runs[name].further(trials, is_over)
            for row in rows(trials, self._objective, self._max_gain, numbers):
                if logger := self._loggers.get(name):
                    for _ in self._attempt(name, partial(logger.log, row)):
                        self._note(name, self._runs[name].with_trial(row.number))

    def finish(self, result: SearchResult) -> None:
        """Log the ending of the study, whose report is written."""
        if not self._loggers:
            return
        self.log(result.trials, is_over=True)
        end = ending(result, self._folder)
        for name, logger in list(self._loggers.items()):
            self._attempt(name, partial(logger.finish, end))

    def _started(self, name: str, facts: Mapping[str, Any]) -> tuple[Logger, LoggedRun]:
        """The logger and what its run has logged: of the noted run, or of a new one if that is gone."""
        start = import_module(f"autotune.report.loggers.{name}").start
        study = StudyEvent(self._folder.name, self._folder, facts, run=uuid.uuid4().hex[:12])
        if noted := self._runs.get(name):
            with contextlib.suppress(Exception):  # deleted, or in another store: what fails for good fails again below
                return start(replace(study, run=noted.run, resumed=True)), noted
        return start(study), LoggedRun(study.run)

    def _note(self, name: str, logged: LoggedRun) -> None:
        """Write down the logger's run and the trials that it has logged."""
        self._runs[name] = logged
        try:
            write_json(self._folder / RUNS, {name: logged.to_dict() for name, logged in self._runs.items()})
        except OSError as error:
            self._give_up(name, type(error).__name__, without_secrets(str(error)))

    def _attempt(self, name: str, act: Callable[[], Any]) -> list[Any]:
        """Run `act` in a thread: its answer in a list, empty if it failed or came too late, and the logger is dropped.

        What it prints goes to standard error.
        """
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((act(), None))
            except BaseException as error:  # a library may even try to end the process
                answers.put((None, error))

        with contextlib.redirect_stdout(sys.stderr):
            threading.Thread(target=run, name=f"autotune-{name}", daemon=True).start()
            try:
                answer, error = answers.get(timeout=PATIENCE_S)
            except Empty:
                self._give_up(name, f"no answer in {PATIENCE_S:.0f} s")
                return []
        if error is None:
            return [answer]
        self._give_up(name, type(error).__name__, without_secrets(str(error)))
        return []

    def _give_up(self, name: str, what: str, detail: str = "") -> None:
        self._loggers.pop(name, None)
        self.problems.append(Note(NoteKind.LOGGER, detail=f"{name} ({what})"))
        note = Note(NoteKind.LOGGER, detail=f"{name} ({': '.join(filter(None, (what, detail)))})")
        print(f"Warning: {note}", file=sys.stderr)


def without_secrets(text: str) -> str:
    """An error message of a tracker's library on one line, without user names and passwords of URLs, folders and tokens."""
    line = " ".join(text.split())[:2000]
    return scrubbed(_STORE.sub(r"\1…/", _LOGIN.sub("//…@", line)))[:300]


def _before_each(folder: Path) -> dict[int, float]:
    """Trial number -> by what share something untested could still beat the best before it: the gap after the trial before."""
    return {number + 1: gap.max_gain_if_fits for number, gap in read_prospects(folder).items()}


def _read(path: Path) -> dict[str, LoggedRun]:
    """Logger -> its run and the trials logged; empty if the file is missing or damaged: runs begin anew."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return {
            name: LoggedRun(str(run["run"]), int(run["last"]), frozenset(map(int, run.get("missing", ()))))
            for name, run in read_json(path).items()
        }
    return {}
