"""`python -m autotune`, and the `autotune` command."""

import contextlib
import errno
import os
import sys
import time

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a write to a stream, which name no file."""

ANYWHERE = ("compare", "login", "search-spaces", "--version", "--help", "-h")
"""First words of commands that start no process, and work on any system, as do those with --server."""


def main() -> None:
    """Run the command line.

    Exit code 1 without a traceback: if nobody reads standard output any more (as behind `| head -1`), if it cannot be
    written, if there is not enough memory for autotune itself, or a limit of its processes and threads is reached, and for
    what needs Linux on another system.
    """
    started = time.monotonic()
    _open_closed_streams()
    with contextlib.suppress(AttributeError):  # another stream in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # what its encoding lacks, as ± or bytes of a path
    first, *others = [*sys.argv[1:], ""]
    if sys.platform != "linux" and first not in ANYWHERE and not any(word.startswith("--server") for word in others):
        from autotune.core.errors import NEEDS_LINUX

        _end(NEEDS_LINUX)
    try:
        from autotune.cli.app import app

        try:
            app(prog_name="autotune", obj=started)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _end()
    except (OSError, RuntimeError) as error:
        from autotune.core.failures import NO_MORE_PROCESSES, from_exception

        if from_exception(error, "").reason.startswith(NO_MORE_PROCESSES):
            _end(f"{NO_MORE_PROCESSES[:1].upper()}{NO_MORE_PROCESSES[1:]}.")
        if not isinstance(error, OSError) or error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _end(f"Standard output cannot be written: {error.strerror}.")
    except (MemoryError, ImportError) as error:
        # The loader's words for a library that finds no room.
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        _end("There is not enough memory to start. Free some, or raise the limit of this shell (ulimit -v).")


def _open_closed_streams() -> None:
    """Let what goes to closed standard streams be lost; else the next files opened would take their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _end(message: str = "") -> None:
    """End with exit code 1. Python flushes standard output once more at its end, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if message:
        print(f"Error: {message}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
