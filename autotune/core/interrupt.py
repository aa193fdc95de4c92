"""Signals during a search: the first Ctrl-C ends it after the running probe, other signals at once.

SIGINT           the running probe, round or training is finished and stored, then KeyboardInterrupt
SIGINT again     KeyboardInterrupt at once
SIGTERM, SIGHUP  Terminated at once, in commands
any of them      while the report is written: after that; from then on at once

An exception that a handler raises is lost while Python runs a weakref callback or a `__del__`: SIGTERM and SIGHUP are
recorded as well, and the next `check` raises a lost one.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias

SAID = "stopping after the running probe; press Ctrl-C again to stop at once"

Handle: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers

ENDING = tuple(number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP"))
"""Signals that end a command at once: of `kill`, and of a terminal that is closed (none on Windows)."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; handled as a second Ctrl-C."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class _Process:
    """State of this process's handlers."""

    ended_by: signal.Signals | None = None  # SIGTERM or SIGHUP, once received
    writing: bool = False  # a report


_process = _Process()


def check() -> None:
    """Raise Terminated after SIGTERM or SIGHUP; called before and during any long step."""
    if _process.ended_by is not None:
        raise Terminated(_process.ended_by)


@dataclass
class StopRequest:
    """The user's request to end the search after the running measurement."""

    to_stop: bool = False
    writing: bool = False  # the report is being written
    meanwhile: bool = False  # Ctrl-C was pressed while it was written

    def check(self) -> None:
        """Raise KeyboardInterrupt if no long step may be started."""
        check()
        if self.to_stop:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Within, signals wait; raises KeyboardInterrupt at the end if one arrived. Later ones interrupt at once."""
        before = _process.ended_by
        self.writing, self.meanwhile, _process.writing = True, False, True
        try:
            yield
        finally:
            self.writing, self.to_stop, _process.writing = False, True, False
        if _process.ended_by is not before:
            check()
        if self.meanwhile:
            raise KeyboardInterrupt


@contextlib.contextmanager
def graceful_interrupt(stop_request: StopRequest, notify: Callable[[str], None]) -> Iterator[None]:
    """Within: the first Ctrl-C sets the request and calls `tell`, the second raises KeyboardInterrupt.

    Only in the main thread, because Python handles signals there, and only if nobody else handles them. Restores the handler.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop_request.writing:
            stop_request.meanwhile = True
            return
        if stop_request.to_stop:
            raise KeyboardInterrupt
        stop_request.to_stop = True
        # Python may be in the middle of printing, or of importing what prints: both are errors here.
        with contextlib.suppress(RuntimeError, ImportError, AttributeError):
            notify(SAID)

    with _handling(signal.SIGINT, handle, instead_of=signal.default_int_handler):
        yield


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Within: SIGTERM and SIGHUP raise Terminated, so that reports are written and children ended.

    For commands, not libraries. A process that ignores SIGHUP, as below `nohup`, keeps ignoring it.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        _process.ended_by = signal.Signals(number)
        if _process.ended_by.name == "SIGHUP":
            _leave_closed_terminal()
        if not _process.writing:
            raise Terminated(_process.ended_by)

    with contextlib.ExitStack() as handlers:
        handlers.callback(setattr, _process, "ended_by", None)
        for number in ENDING:
            handlers.enter_context(_handling(number, handle, instead_of=signal.SIG_DFL))
        yield


@contextlib.contextmanager
def without_handlers() -> Iterator[None]:
    """Within, a program's own handlers of these signals give way to Python's; ignored signals stay ignored."""
    with contextlib.ExitStack() as handlers:
        for number in (signal.SIGINT, *ENDING):
            usual: Handle = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            if callable(own := signal.getsignal(number)):
                handlers.enter_context(_handling(number, usual, instead_of=own))
        yield


def _leave_closed_terminal() -> None:
    """Send output to /dev/null if the terminal is gone: printing would fail in the middle of the report."""
    for fd in (1, 2):
        try:
            os.write(fd, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, fd)
            os.close(null)


@contextlib.contextmanager
def _handling(number: signal.Signals, handle: Handle, instead_of: object) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not instead_of:
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
