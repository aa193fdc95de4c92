"""Ctrl-C, SIGTERM and SIGHUP during a search: the first Ctrl-C ends it after the running probe, all else at once.

SIGINT           the running probe, round or training ends and is kept, then KeyboardInterrupt
SIGINT again     KeyboardInterrupt at once
SIGTERM, SIGHUP  Terminated at once, where the command line asked for it
any of them      while the report is written: after that; from then on at once

An exception that a handler raises is lost where Python happens to run a weakref callback or a `__del__`: SIGTERM and SIGHUP
are noted as well, and the next `check` raises what was lost.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from autotune.core.errors import SearchFailed, TimeIsOver

SAID = "stopping after the running probe; press Ctrl-C again to stop at once"


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command at once: from those that end processes by their number, and from a terminal that is closed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: what a second Ctrl-C does."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class _Process:
    """What this process's handlers know. ended_by: the signal that asked the command to end; writing: a report."""

    ended_by: signal.Signals | None = None
    writing: bool = False


_process = _Process()


def check() -> None:
    """Raise Terminated where SIGTERM or SIGHUP came; called before and while anything runs that takes a while."""
    if _process.ended_by is not None:
        raise Terminated(_process.ended_by)


def stop_reason_of(ended: BaseException) -> str:
    """Why a search ended that did not come to its end."""
    if isinstance(ended, KeyboardInterrupt):
        return f"ended by {ended.number.name}" if isinstance(ended, Terminated) else "interrupted by the user"
    if isinstance(ended, (SearchFailed, TimeIsOver)):
        said = " ".join(ended.written[0].split()).rstrip(".")
        return said[:1].lower() + said[1:]
    return f"the search failed with {type(ended).__name__}"


@dataclass
class StopRequest:
    """Whether the user wishes the search to end after what is running, whether its report is being written, and whether
    they wished so meanwhile."""

    to_stop: bool = False
    writing: bool = False
    meanwhile: bool = False

    def check(self) -> None:
        """Asked before anything is started that takes a while; raises KeyboardInterrupt where it should not be."""
        check()
        if self.to_stop:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Within, all signals wait. Raises KeyboardInterrupt at the end where one came; the next one interrupts at once."""
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
def graceful_interrupt(wish: StopRequest, tell: Callable[[str], None]) -> Iterator[None]:
    """Within: the first Ctrl-C sets the wish and tells so, the second raises KeyboardInterrupt.

    Only in the main thread, where Python lets signals be handled, and only where nobody else handles them; else Ctrl-C
    does what it did. The handler that was there is there again afterwards.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        if wish.writing:
            wish.meanwhile = True
            return
        if wish.to_stop:
            raise KeyboardInterrupt
        wish.to_stop = True
        # Python may be in the middle of printing, and printing inside printing is an error.
        with contextlib.suppress(RuntimeError):
            tell(SAID)

    with _handling(signal.SIGINT, handle, instead_of=signal.default_int_handler):
        yield


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Within: SIGTERM and SIGHUP raise Terminated, so that reports are written and children ended; for commands, not
    libraries. Who ignores SIGHUP, as below `nohup`, goes on ignoring it."""

    def handle(number: int, _frame: FrameType | None) -> None:
        _process.ended_by = signal.Signals(number)
        if number == signal.SIGHUP:
            _leave_closed_terminal()
        if not _process.writing:
            raise Terminated(_process.ended_by)

    with contextlib.ExitStack() as handlers:
        handlers.callback(setattr, _process, "ended_by", None)
        for number in ENDING:
            handlers.enter_context(_handling(number, handle, instead_of=signal.SIG_DFL))
        yield


def _leave_closed_terminal() -> None:
    """Where the terminal is gone, let what is still printed go nowhere: it would fail in the middle of the report."""
    for fd in (1, 2):
        try:
            os.write(fd, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, fd)
            os.close(null)


@contextlib.contextmanager
def _handling(
    number: signal.Signals, handle: Callable[[int, FrameType | None], None], instead_of: object
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) is not instead_of:
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
