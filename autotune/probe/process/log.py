"""Log file of a probe: the beginning and the end of its output."""

import contextlib
import os
from collections import deque
from pathlib import Path

LOG_HEAD, LOG_TAIL = 1_000_000, 200_000
"""Bytes kept of the beginning and of the end: a flood must not fill the disk."""


class Log:
    """Writes the beginning of a probe's output at once, and the end when it is closed."""

    def __init__(self, path: Path, fd: int) -> None:
        self._fd: int | None = fd
        os.set_blocking(fd, False)
        self._file = path.open("wb", buffering=0)
        self._written = self._left_out = 0
        self._tail: deque[bytes] = deque()

    def open_fds(self) -> list[int]:
        return [] if self._fd is None else [self._fd]

    def drain(self) -> None:
        """Read at most a few chunks, so that a flood cannot keep the host from its deadline."""
        for _ in range(16):
            if self._fd is None:
                return
            try:
                chunk = os.read(self._fd, 65536)
            except BlockingIOError:
                return
            if not chunk:
                os.close(self._fd)
                self._fd = None
                return
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        head, rest = chunk[: LOG_HEAD - self._written], chunk[max(0, LOG_HEAD - self._written) :]
        if head:
            self._written += len(head)
            with contextlib.suppress(OSError):  # a full disk must not end the probe
                self._file.write(head)
        if rest:
            self._tail.append(rest)
            while sum(map(len, self._tail)) - len(self._tail[0]) > LOG_TAIL:
                self._left_out += len(self._tail.popleft())

    def close(self) -> None:
        self.drain()
        if self._fd is not None:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            if self._left_out:
                self._file.write(f"\n... {self._left_out} bytes left out ...\n".encode())
            self._file.write(b"".join(self._tail))
        self._file.close()
