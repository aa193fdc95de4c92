"""What commands share: one clear line for what was foreseen, exit codes, numbers and folders as people type them."""

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from autotune.core.errors import AutotuneError, InvalidRequest, NothingFits
from autotune.core.interrupt import Terminated, ending_on_signals
from autotune.core.units import shortened

INTERRUPTED = 130
"""Exit code after Ctrl-C; like those of other signals 128 and the signal's number, as shells have them."""

PAGE = "report.html"
"""The file of a report folder that people open."""

PASSING = (typer.Exit, typer.Abort, BrokenPipeError)
"""Exceptions by which a command ends as it should, and that of a reader who went away."""


class ErrorReporter:
    """One clear line on standard error and the right exit code; no traceback for what was foreseen.

    as_json: standard output gets exactly one JSON object, the answer given to `json()` or, where there is none, the error;
    whatever else is printed within goes to standard error, even from threads that somebody left behind. What nobody foresaw
    is such an object too, and goes on with its traceback.
    Within, SIGTERM and SIGHUP end the command as a second Ctrl-C does. when_interrupted: what is kept then, and how to go on.
    """

    def __init__(self, as_json: bool = False, when_interrupted: str = "Run the same command again.") -> None:
        self._as_json = as_json
        self.when_interrupted = when_interrupted
        self._within = contextlib.ExitStack()

    def __enter__(self) -> "ErrorReporter":
        self._within.enter_context(ending_on_signals())
        self._out = sys.stdout
        if self._as_json:
            self._within.enter_context(contextlib.redirect_stdout(sys.stderr))
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._within.close()
        if isinstance(error, AutotuneError):
            message, advice = error.written
            print(f"{'' if isinstance(error, NothingFits) else 'Error: '}{message} {advice}".rstrip(), file=sys.stderr)
            self._json_error(type(error).__name__, message, advice, error.exit_code)
            raise typer.Exit(error.exit_code) from None
        if isinstance(error, KeyboardInterrupt):
            code, end = INTERRUPTED, "interrupted"
            if isinstance(error, Terminated):
                code, end = 128 + error.number, f"ended by {error.number.name}"
            print(f"{end[:1].upper()}{end[1:]}. {self.when_interrupted}", file=sys.stderr)
            self._json_error("Interrupted", f"The command was {end}.", self.when_interrupted, code)
            raise typer.Exit(code) from None
        if isinstance(error, Exception) and not isinstance(error, PASSING):
            said = f"{error}" or "No further details."
            self._json_error(type(error).__name__, said, "See the traceback on standard error.", 1)

    def json(self, told: Mapping[str, Any]) -> None:
        """Print the answer as the one JSON object."""
        print(json.dumps(told, indent=1), file=self._out, flush=True)
        self._as_json = False

    def _json_error(self, kind: str, message: str, advice: str, code: int) -> None:
        if self._as_json:
            self.json(json_error(kind, message, advice, code))


def resuming(kept: str, fresh: bool = False) -> str:
    """What is kept of an interrupted command that resumes, and how; fresh: it was begun with --fresh."""
    return f"{kept} Run the same command again{', without --fresh,' if fresh else ''} to resume."


def json_error(kind: str, message: str, advice: str, code: int) -> dict[str, Any]:
    """What `--json` prints where there is no answer: the error's type, message, advice and exit code."""
    return {"error": {"type": kind, "message": message, "advice": advice, "exit_code": code}}


def whole(name: str, text: str) -> int:
    """The number that an option's text means; raises InvalidRequest."""
    try:
        return int(str(text).replace("_", ""))
    except ValueError:
        raise InvalidRequest(f"--{name.replace('_', '-')} must be a whole number, not {shortened(text)}.") from None


def shown(folder: Path | None) -> str:
    """The folder as one would type it from here."""
    if folder is None:
        return "."
    try:
        return str(folder.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
