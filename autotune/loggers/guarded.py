"""Loggers that cannot lose a search: one that fails or hangs is told of once and dropped."""

import contextlib
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from autotune.loggers import Logger
from autotune.loggers.told import Row, Study, ending, rows, study_facts
from autotune.plan import Progress, Watch
from autotune.probe.order import read_json, write_json
from autotune.report.facts import Facts
from autotune.request import TuningRequest
from autotune.study_folder import RUNS
from autotune.trial import Trial

PATIENCE_S = 60.0
"""That one call of a logger may take; its library retries within that."""


class Guarded:
    """The loggers of one study; no method raises what a logger raised.

    A trial is told once: what was told stands in the study's folder, so a resumed study goes on in the same runs.
    """

    def __init__(self, names: Sequence[str], request: TuningRequest, facts: Facts, folder: Path) -> None:
        self._folder, self._objective = folder, request.objective
        self._told = _read(folder / RUNS) if names else {}
        self._loggers: dict[str, Logger] = {}
        self._could_win: dict[int, float] = {}
        self.problems: list[str] = []
        for name in names:
            self._attempt(name, partial(self._start, name, study_facts(request, facts)))

    def watching(self, watch: Watch) -> Watch:
        """The same watch, and every new trial told to the loggers after it."""

        def both(progress: Progress) -> None:
            watch(progress)
            if progress.kind == "probing" and progress.number is not None and progress.could_win is not None:
                self._could_win[progress.number] = progress.could_win
            self.log(progress.trials)

        return both if self._loggers else watch

    def log(self, trials: Sequence[Trial]) -> None:
        """Tell every trial that a logger was not yet told."""
        for name in list(self._loggers):
            for row in rows(trials, self._objective, self._could_win, after=self._told[name]["last"]):
                if name in self._loggers:
                    self._attempt(name, partial(self._log, name, row))

    def finish(self, facts: Facts, complete: bool) -> None:
        """Tell what came of the study, whose report is written."""
        if not self._loggers:
            return
        self.log(facts.trials)
        end = ending(facts, self._folder, complete)
        for name, logger in list(self._loggers.items()):
            self._attempt(name, partial(logger.finish, end))

    def _start(self, name: str, facts: Mapping[str, Any]) -> None:
        known = self._told.get(name)
        study = Study(
            name=self._folder.name,
            folder=self._folder,
            facts=facts,
            run=known["run"] if known else uuid.uuid4().hex[:12],
            resumed=known is not None,
        )
        logger: Logger = import_module(f"autotune.loggers.to_{name}").start(study)
        self._told[name] = {"last": -1, **(known or {}), "run": logger.run}
        self._loggers[name] = logger
        self._keep()

    def _log(self, name: str, row: Row) -> None:
        self._loggers[name].log(row)
        self._told[name]["last"] = row.number
        self._keep()

    def _keep(self) -> None:
        write_json(self._folder / RUNS, self._told)

    def _attempt(self, name: str, act: Callable[[], None]) -> None:
        """Let it act within its time, in a thread that may be left behind; what it prints goes to standard error."""
        failed: list[str] = [f"no answer in {PATIENCE_S:.0f} s"]

        def run() -> None:
            try:
                act()
                failed.clear()
            except BaseException as error:  # a library may even try to end the process
                failed[:] = [" ".join(f"{type(error).__name__}: {error}".split())[:300]]

        thread = threading.Thread(target=run, name=f"autotune-{name}", daemon=True)
        with contextlib.redirect_stdout(sys.stderr):
            thread.start()
            thread.join(PATIENCE_S)
        if failed:
            self._loggers.pop(name, None)
            self.problems.append(f"--report-to {name} was given up ({failed[0]}); the search itself is not touched")
            print(f"Warning: {self.problems[-1]}", file=sys.stderr)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """By logger: run and last. What is missing or damaged counts as nothing: runs begin anew."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return {name: {"run": str(one["run"]), "last": int(one["last"])} for name, one in read_json(path).items()}
    return {}
