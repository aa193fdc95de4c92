"""Choice of what a running search shows: a table on a terminal or in a notebook, plain lines in logs and CI."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from rich.console import Console

from autotune.core.units import counted, format_bytes
from autotune.report.live.notebook import NotebookTable, in_notebook
from autotune.report.live.terminal import LiveTable
from autotune.report.live.text import lead_text, now_text, short, to_go_text
from autotune.report.markdown import one_line
from autotune.report.trial_text import outcome_text, speed_text
from autotune.study.plan import Progress, ProgressKind, Watch

Watching = contextlib.AbstractContextManager[Watch]
"""A context that gives what to pass to `search(watch=...)`."""


def watcher(console: Console, quiet: bool, stays: bool = True) -> Watching:
    """Display of a search on this console; quiet: nothing but the answer to Ctrl-C. stays: the table stays at the end."""
    if quiet:
        return contextlib.nullcontext(print_stopping)
    return LiveTable(console, stays) if is_lively(console) else contextlib.nullcontext(partial(print_line, console))


@contextlib.contextmanager
def following(watch: Watch | bool | None) -> Iterator[Watch]:
    """Display of a search for a caller in Python: their function, a display, or nothing if False.

    In a notebook a table in place, on a terminal also on standard error; in a script's log plain lines there.
    """
    if callable(watch):
        yield watch
        return
    with NotebookTable() if in_notebook() and watch is not False else watcher(errors(), quiet=watch is False) as show:
        yield show


def saying(watch: Callable[[str], None] | bool | None) -> Callable[[str], None]:
    """Output of lines for a caller in Python: their function, standard error, or nothing if False."""
    if callable(watch):
        return watch
    return (lambda line: None) if watch is False else lambda line: print(line, file=sys.stderr, flush=True)


def errors() -> Console:
    """Standard error as it is now, even if it is redirected later."""
    return Console(file=sys.stderr)


def is_lively(console: Console, environment: Mapping[str, str] = os.environ) -> bool:
    """True if output to this console can be overwritten: a real terminal, and not the log of a CI.

    A console that is only made to use colours (`FORCE_COLOR`) is not a terminal.
    """
    in_ci = environment.get("CI", "").lower() not in ("", "0", "false")
    return console.file.isatty() and not in_ci and environment.get("TERM") not in ("dumb", "unknown")


def print_stopping(progress: Progress) -> None:
    """Print the answer to Ctrl-C, and nothing else."""
    if progress.kind is ProgressKind.STOPPING:
        print(progress.message, file=sys.stderr, flush=True)


def print_line(console: Console, progress: Progress) -> None:
    """Print a line for each event, for logs and CI."""
    messages = (ProgressKind.PREPARING, ProgressKind.RESUMED, ProgressKind.FINISHING, ProgressKind.STOPPING)
    text = progress.message if progress.kind in messages else ""
    if progress.kind is ProgressKind.CONFIRMING:
        text = now_text(progress)
    if progress.kind in (ProgressKind.TRIAL, ProgressKind.CONFIRMED) and progress.trial:
        trial, is_new = progress.trial, progress.kind is ProgressKind.TRIAL
        again = "" if is_new else f", measured {counted(len(trial.measurements), 'time')}"
        what = short(trial.configuration, progress.trials[0])
        result = f"{speed_text(trial)} samples/s, peak {format_bytes(trial.peak_bytes)}"
        warnings = f"warning: {'; '.join(map(str, trial.final.warnings))}" if trial.final.warnings else ""
        left = f"{counted(progress.probes_left, 'trial')} left" if is_new and progress.probes_left else ""
        outcome = result if trial.feasible else outcome_text(trial)
        parts = (outcome, warnings, lead_text(progress), left, to_go_text(progress))
        text = f"trial {trial.number}{again}: {what}: {'; '.join(filter(None, parts))}"
    if text:
        console.print(one_line(text), markup=False, highlight=False, soft_wrap=True)
