"""Error reporting, exit codes and paths of the commands."""

import contextlib
import errno
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import typer

from autotune.core.errors import AutotuneError, StorageFailed, UnreadableFile
from autotune.core.interrupt import Terminated, ending_on_signals
from autotune.core.request import flag_of
from autotune.core.units import broken

INTERRUPTED = 130
"""Exit code after Ctrl-C; as in shells, the codes of other signals are 128 plus the signal's number."""

WORDS = "autotune.words"
"""Key of a context's `meta`: the words of the command line."""

PAGE = "report.html"
"""The file of a report folder that people open."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a write for which the disk has no room."""

UNUSABLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.ENOTDIR)
"""Errors of paths as such, which `Path.exists` and its like raise."""

NORMAL_EXITS = (typer.Exit, typer.Abort, BrokenPipeError)
"""Exceptions that end a command intentionally; BrokenPipeError: the reader of standard output is gone."""


class ErrorReporter:
    """Context of a command: an expected error is one line on standard error and its exit code, without a traceback.

    as_json: standard output gets exactly one JSON object, the result given to `json()` or else the error; everything else
    that is printed within goes to standard error. An unexpected error is such an object too, and its traceback follows.
    SIGTERM and SIGHUP end the command as a second Ctrl-C does. when_interrupted: message about kept results and resuming.
    """

    def __init__(self, as_json: bool = False, when_interrupted: str = "Run the same command again.") -> None:
        self._as_json = as_json
        self.when_interrupted = when_interrupted
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "ErrorReporter":
        self._stack.enter_context(ending_on_signals())
        self._stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("always", UnreadableFile)
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
        self._stdout = sys.stdout
        if self._as_json:
            self._stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.close()
        if isinstance(error, OSError) and error.errno in FULL and error.filename is not None:
            advice = "Free space, or let TMPDIR name a folder of another disk; then run the same command again."
            error = StorageFailed(f"{error.filename} cannot be written: {error.strerror}.", advice)
        elif isinstance(error, OSError) and error.errno in UNUSABLE and error.filename is not None:
            error = StorageFailed(f"{error.filename} cannot be used: {error.strerror}.", "Name another path.")
        if isinstance(error, AutotuneError):
            message = error.message_of(error.option and flag_of(error.option))
            line = f"Error: {message} {error.advice}".rstrip()
            self._fail(line, type(error).__name__, message, error.advice, error.exit_code)
        if isinstance(error, KeyboardInterrupt):
            code, end, advice = INTERRUPTED, "interrupted", self.when_interrupted
            if isinstance(error, Terminated):
                code, end = 128 + error.number, f"ended by {error.number.name}"
            line = f"{end[:1].upper()}{end[1:]}. {advice}"
            self._fail(line, "Interrupted", f"The command was {end}.", advice, code)
        if isinstance(error, Exception) and not isinstance(error, NORMAL_EXITS):
            message = f"{error}" or "No further details."
            self._print_error(type(error).__name__, message, "See the traceback on standard error.", 1)

    def json(self, result: Mapping[str, Any]) -> None:
        """Print the result as the one JSON object."""
        print(json.dumps(result, indent=1), file=self._stdout, flush=True)
        self._as_json = False

    def show(self, result: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print the result as the one JSON object, or without --json these lines."""
        if self._as_json:
            self.json(result)
        else:
            print("\n".join(lines))

    def _fail(self, line: str, *error: Any) -> None:
        print_message(line)
        self._print_error(*error)
        raise typer.Exit(error[-1]) from None

    def _print_error(self, *error: Any) -> None:
        if self._as_json:
            self.json(json_error(*error))


def _show_warning(usual: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Show a warning about a study's files as one line, any other like Python."""
    if issubclass(category, UnreadableFile):
        print_message(f"Warning: {message}.")
    else:
        usual(message, category, *place)


def print_message(text: str) -> None:
    """Print the text on standard error, on a terminal in lines that are broken between words."""
    width = shutil.get_terminal_size().columns
    print("\n".join(broken(text, width)) if sys.stderr.isatty() else text, file=sys.stderr)


def json_error(kind: str, message: str, advice: str, code: int) -> dict[str, Any]:
    """The output of `--json` instead of a result: the error's type, message, advice and exit code."""
    return {"error": {"type": kind, "message": message, "advice": advice, "exit_code": code}}


def resuming(kept: str, fresh: bool = False) -> str:
    """Message about kept results of an interrupted command and resuming it; fresh: it was started with --fresh."""
    return f"{kept} Run the same command again{', without --fresh,' if fresh else ''} to resume."
