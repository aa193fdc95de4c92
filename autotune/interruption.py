"""Ctrl-C during a search: once ends it after the running probe, twice at once.

SIGINT        the running probe, round or training ends and is kept, then KeyboardInterrupt
SIGINT again  KeyboardInterrupt at once; while the report is being written, after that
SIGTERM       Terminated at once, where the command line asked for it
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

SAID = "stopping after the running probe; press Ctrl-C again to stop at once"


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what a second Ctrl-C does, for those that end processes by their number."""


def statement_of(interrupt: KeyboardInterrupt) -> str:
    """Why a search ended that was interrupted."""
    return "ended by SIGTERM" if isinstance(interrupt, Terminated) else "interrupted by the user"


@dataclass
class Wish:
    """Whether the user wishes the search to end after what is running, and whether its report is being written."""

    to_stop: bool = False
    writing: bool = False

    def check(self) -> None:
        """Asked before anything is started that takes a while; raises KeyboardInterrupt where it should not be."""
        if self.to_stop:
            raise KeyboardInterrupt


@contextlib.contextmanager
def patient(wish: Wish, tell: Callable[[str], None]) -> Iterator[None]:
    """Within: the first Ctrl-C sets the wish and tells so, the second raises KeyboardInterrupt.

    Only in the main thread, where Python lets signals be handled, and only where nobody else handles them; else Ctrl-C
    does what it did. The handler that was there is there again afterwards.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        if wish.to_stop and not wish.writing:
            raise KeyboardInterrupt
        wish.to_stop = True
        if not wish.writing:
            # Python may be in the middle of printing, and printing inside printing is an error.
            with contextlib.suppress(RuntimeError):
                tell(SAID)

    with _handling(signal.SIGINT, handle, instead_of=signal.default_int_handler):
        yield


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Within: SIGTERM raises Terminated, so that reports are written and children ended; for commands, not libraries."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    with _handling(signal.SIGTERM, handle, instead_of=signal.SIG_DFL):
        yield


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
