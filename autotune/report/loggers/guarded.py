"""Loggers that cannot lose a search: one that fails or hangs is told of once and dropped."""

import contextlib
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from autotune.core.io import read_json, write_json
from autotune.core.paths import scrubbed
from autotune.core.request import TuningRequest
from autotune.core.trial import Trial
from autotune.report.loggers import Logger
from autotune.report.loggers.events import Row, Study, ending, rows, study_facts
from autotune.study.plan import Progress, Watch
from autotune.study.result import SearchResult
from autotune.study.store import RUNS, read_prospects

PATIENCE_S = 60.0
"""That one call of a logger may take; its library retries within that."""

_LOGIN = re.compile(r"//[^\s/]*@")
_STORE = re.compile(r"\b((?:file|sqlite)[\w+]*:)/\S*/")


class LoggerGroup:
    """The loggers of one study, from `start` on; no method raises what a logger raised.

    A trial is told once: what was told stands in the study's folder, so a resumed study goes on in the same runs.
    problems: a sentence for each logger that was dropped, fit for a report: of an error its type alone.
    """

    def __init__(self, names: Sequence[str], objective: str, folder: Path) -> None:
        self._names, self._objective, self._folder = names, objective, folder
        self._told = _read(folder / RUNS) if names else {}
        self._loggers: dict[str, Logger] = {}
        self._max_gain_if_fits = _before_each(folder) if names else {}
        self.problems: list[str] = []

    def start(self, request: TuningRequest, result: SearchResult) -> None:
        """Begin the run of every logger, or go on with it."""
        told = study_facts(request, result)
        for name in self._names:
            self._attempt(name, partial(self._started, name, told), partial(self._keep_logger, name))

    def watching(self, watch: Watch) -> Watch:
        """The same watch, and every new trial told to the loggers after it."""

        def both(progress: Progress) -> None:
            watch(progress)
            if progress.kind == "stopping":  # said by a signal's handler, maybe in the middle of telling a trial
                return
            if progress.kind == "probing" and progress.number is not None and progress.max_gain_if_fits is not None:
                self._max_gain_if_fits[progress.number] = progress.max_gain_if_fits
            self.log(progress.trials)

        return both if self._loggers else watch

    def log(self, trials: Sequence[Trial]) -> None:
        """Tell every trial that a logger was not yet told."""
        for name in list(self._loggers):
            for row in rows(trials, self._objective, self._max_gain_if_fits, after=self._told[name]["last"]):
                if name in self._loggers:
                    self._attempt(name, partial(self._loggers[name].log, row), partial(self._keep_row, name, row))

    def finish(self, result: SearchResult, complete: bool) -> None:
        """Tell what came of the study, whose report is written."""
        if not self._loggers:
            return
        self.log(result.trials)
        end = ending(result, self._folder, complete)
        for name, logger in list(self._loggers.items()):
            self._attempt(name, partial(logger.finish, end))

    def _started(self, name: str, facts: Mapping[str, Any]) -> tuple[Logger, str, int]:
        """(logger, its run, the last trial that the run was told): of the known run, or of a new one where that is gone."""
        start = import_module(f"autotune.report.loggers.{name}").start
        study = Study(self._folder.name, self._folder, facts, run=uuid.uuid4().hex[:12])
        if known := self._told.get(name):
            with contextlib.suppress(Exception):  # deleted, or in another store: what fails for good fails again below
                logger: Logger = start(replace(study, run=known["run"], resumed=True))
                return logger, logger.run, known["last"]
        logger = start(study)
        return logger, logger.run, -1

    def _keep_logger(self, name: str, started: tuple[Logger, str, int]) -> None:
        logger, run, last = started
        self._told[name] = {"run": run, "last": last}
        self._keep()
        self._loggers[name] = logger

    def _keep_row(self, name: str, row: Row, _: None) -> None:
        self._told[name]["last"] = row.number
        self._keep()

    def _keep(self) -> None:
        write_json(self._folder / RUNS, self._told)

    def _attempt(self, name: str, act: Callable[[], Any], keep: Callable[[Any], None] = lambda answer: None) -> None:
        """Let it act in a thread, and keep its answer if it comes in time; a thread that is left behind changes nothing
        any more. What it prints goes to standard error."""
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
                return
        if error is None:
            try:
                keep(answer)
            except OSError as refused:
                error = refused
        if error is not None:
            self._give_up(name, type(error).__name__, fit_to_show(str(error)))

    def _give_up(self, name: str, what: str, detail: str = "") -> None:
        self._loggers.pop(name, None)
        said, rest = f"the logger {name} was given up ({what}", "); the search itself is not touched"
        self.problems.append(said + rest)
        print(f"Warning: {said}{f': {detail}' if detail else ''}{rest}", file=sys.stderr)


def fit_to_show(text: str) -> str:
    """What a tracker's library says, on one line; without names and passwords of addresses, folders and tokens."""
    line = " ".join(text.split())[:2000]
    return scrubbed(_STORE.sub(r"\1…/", _LOGIN.sub("//…@", line)))[:300]


def _before_each(folder: Path) -> dict[int, float]:
    """Trial number -> by what share something untried could still beat the best before it: as it stood after the last."""
    return {number + 1: one.max_gain for number, one in read_prospects(folder).items()}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """By logger: run and last. What is missing or damaged counts as nothing: runs begin anew."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return {name: {"run": str(one["run"]), "last": int(one["last"])} for name, one in read_json(path).items()}
    return {}
