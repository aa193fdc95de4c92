"""What a search shows while it runs: a table on a terminal or in a notebook, plain lines in logs and CI."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rich.console import Console

from autotune.core.options import in_python
from autotune.core.units import format_bytes
from autotune.report.live.notebook import NotebookTable, in_notebook
from autotune.report.live.terminal import LiveTable
from autotune.report.live.text import baseline_of, best_text, left_text
from autotune.report.markdown import one_line
from autotune.report.summary import outcome_text, speed_text
from autotune.study.plan import Progress, Watch

Watching = contextlib.AbstractContextManager[Watch]
"""Something to use as a context, which gives what to pass to `search(watch=...)`."""


def watcher(console: Console, quiet: bool) -> Watching:
    """What shows a search on this console."""
    if quiet:
        return Silent()
    return LiveTable(console) if is_lively(console) else PlainLines(console)


@contextlib.contextmanager
def following(watch: Watch | bool | None) -> Iterator[Watch]:
    """What shows a search to a caller in Python: their own function, a display, or by False nothing.

    A notebook is shown a table in place, a terminal likewise on standard error; a script's log there gets plain lines.
    """
    if callable(watch):
        yield watch
        return
    with NotebookTable() if in_notebook() and watch is not False else watcher(errors(), quiet=watch is False) as show:
        yield lambda progress: show(replace(progress, message=in_python(progress.message)))


def saying(watch: Callable[[str], None] | bool | None) -> Callable[[str], None]:
    """What tells a caller in Python what is done, line by line: their own function, standard error, or by False nothing."""
    if callable(watch):
        return watch
    return (lambda line: None) if watch is False else lambda line: print(in_python(line), file=sys.stderr, flush=True)


def errors() -> Console:
    """Standard error as it is now, whatever it is put to later."""
    return Console(file=sys.stderr)


def is_lively(console: Console, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether what is written to this console can be overwritten: a real terminal, which is not the log of a CI.

    A console that is only told to use colours (`FORCE_COLOR`) is none.
    """
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.file.isatty() and not in_ci and environment.get("TERM") not in ("dumb", "unknown")


class Silent:
    """Shows nothing, but answers whoever presses Ctrl-C."""

    def __enter__(self) -> Callable[[Progress], None]:
        return self._answer

    def __exit__(self, *_: object) -> None:
        return None

    def _answer(self, progress: Progress) -> None:
        if progress.kind == "stopping":
            print(progress.message, file=sys.stderr, flush=True)


class PlainLines:
    """One line for everything that happened, for logs and CI."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Callable[[Progress], None]:
        return self._say

    def __exit__(self, *_: object) -> None:
        return None

    def _say(self, progress: Progress) -> None:
        if progress.kind in ("trial", "confirmed") and progress.trial:
            trial = progress.trial
            what = f"round {len(trial.confirmations)}, trial" if progress.kind == "confirmed" else "trial"
            speed = f"{speed_text(trial)} samples/s, peak {format_bytes(trial.peak_bytes)}"
            done = speed if trial.feasible else outcome_text(trial)
            warnings = f"; warning: {'; '.join(trial.final.warnings)}" if trial.final.warnings else ""
            best = f"; {best_text(progress)}" if progress.best else ""
            left = f"; {left_text(progress)}" if progress.kind == "trial" else ""
            told = trial.configuration.unlike(baseline_of(progress, trial))
            self._line(f"{what} {trial.number}: {told}: {done}{warnings}{best}{left}")
        elif progress.kind in ("preparing", "resumed", "finishing", "stopping"):
            self._line(progress.message)

    def _line(self, text: str) -> None:
        self._console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)
