"""What commands share: one clear line for what was foreseen, exit codes, numbers and folders as people type them."""

import sys
from pathlib import Path
from typing import Any

import typer

from autotune.errors import AutotuneError, InvalidRequest, NothingFits
from autotune.study_folder import study_folder as study_folder

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class plain_errors:
    """One clear line on standard error and the right exit code; no traceback for what was foreseen."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, AutotuneError):
            print(f"{'' if isinstance(error, NothingFits) else 'Error: '}{error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None


def whole(name: str, text: str) -> int:
    """The number that an option's text means; raises InvalidRequest."""
    try:
        return int(str(text).replace("_", ""))
    except ValueError:
        raise InvalidRequest(
            f"--{name.replace('_', '-')} must be a whole number, not {text!r}.", "Write it in digits."
        ) from None


def shown(folder: Path | None) -> str:
    """The folder as one would type it from here."""
    if folder is None:
        return "."
    try:
        return str(folder.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
