"""A command in a terminal of its own, and what stands on it."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
"""A control sequence that sets a colour of letters or ground."""


def environment_with(**variables: str | None) -> dict[str, str]:
    """The environment of a command: this process's, without what decides on colours, with these; None: without that one."""
    undecided = ("NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CI", "COLUMNS", "LINES", "TERM")
    known = {name: value for name, value in os.environ.items() if name not in undecided}
    known |= {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    return {name: value for name, value in (known | variables).items() if value is not None}


class Terminal:
    """`autotune` with these words as the foreground of a terminal; keys reach it as they do from a keyboard."""

    def __init__(self, words: list[str], folder: Path, **variables: str | None) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "autotune", *words],  # code between fork and exec may hang
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment_with(**variables),
        )
        os.close(theirs)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a letter may come in two reads

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str, seconds: float = 240.0) -> None:
        """Read until this text has come; fails where the command ends or the seconds are over before."""
        until = time.monotonic() + seconds
        before = len(self.text)
        while text not in self.text[before:]:
            assert self._read(until), f"{text!r} never came:\n{self.text[-3000:]}"

    def end(self, seconds: float = 120.0) -> int:
        """Read to the end; the exit code."""
        until = time.monotonic() + seconds
        while self._read(until):
            pass
        return self.process.wait(10)

    def _read(self, until: float) -> bool:
        if not select.select([self._ours], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        with contextlib.suppress(OSError):  # Linux's way to say that nobody holds the other end any more
            if read := os.read(self._ours, 65536):
                self.text += self._decoder.decode(read)
                return True
        return False

    def close_terminal(self) -> None:
        """As a window that is closed, or a connection that is lost."""
        os.close(self._ours)
        self._ours = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._ours >= 0:
            os.close(self._ours)


@contextlib.contextmanager
def terminal(words: list[str], folder: Path, **variables: str | None) -> Iterator[Terminal]:
    """A Terminal that is closed, and its command ended, at the end."""
    opened = Terminal(words, folder, **variables)
    try:
        yield opened
    finally:
        opened.close()
