"""A search as a terminal shows it, recorded as an asciinema cast (version 2), which is plain text.

python benchmarks/terminal_cast.py [docs/_static/search.cast]

Runs the first search of the quickstart in a folder of its own, 80 columns wide; a minute on an idle machine. To watch it:
`asciinema play docs/_static/search.cast`.
"""

import codecs
import fcntl
import json
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

COMMAND = "autotune search gpt2-mini --global-batch-size 16 --sequence-length 32 --device cpu --n-trials 4 --no-history"
COLUMNS, LINES = 80, 30
TYPED_S = 0.04
"""Seconds of a typed letter."""


def main() -> int:
    """Record; the exit code is the search's."""
    path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "_static" / "search.cast")
    with tempfile.TemporaryDirectory() as folder:
        events, code = recorded(COMMAND, Path(folder))
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": LINES,
        "title": "autotune search",
        "env": {"TERM": "xterm-256color"},
    }
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *events)), encoding="utf-8")
    return code


def recorded(command: str, folder: Path) -> tuple[list[tuple[float, str, str]], int]:
    """([seconds, "o", what was printed then], exit code) of a command that is typed and run in this folder."""
    typed = [*"$ ", *command, "\r\n"]
    events = [(round(place * TYPED_S, 3), "o", letter) for place, letter in enumerate(typed)]
    begun = time.monotonic() - len(typed) * TYPED_S
    child, terminal = pty.fork()
    if not child:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execv(sys.executable, [sys.executable, "-m", *command.split()])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    text = codecs.getincrementaldecoder("utf-8")("replace")
    while piece := _read(terminal):
        events.append((round(time.monotonic() - begun, 3), "o", text.decode(piece)))
    return events, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read(terminal: int) -> bytes:
    """The next output; empty at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # the terminal's other side is closed
        return b""


if __name__ == "__main__":
    sys.exit(main())
