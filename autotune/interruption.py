"""Ctrl-C during a search: once ends it after the running probe, twice at once.

SIGINT        the running probe, round or training ends and is kept, then KeyboardInterrupt
SIGINT again  KeyboardInterrupt at once
SIGINT        while the report is written: KeyboardInterrupt after that; from then on at once
SIGTERM       Terminated at once, where the command line asked for it
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from autotune.errors import SearchFailed

SAID = "stopping after the running probe; press Ctrl-C again to stop at once"


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what a second Ctrl-C does, for those that end processes by their number."""


def statement_of(ended: BaseException) -> str:
    """Why a search ended that did not come to its end."""
    if isinstance(ended, KeyboardInterrupt):
        return "ended by SIGTERM" if isinstance(ended, Terminated) else "interrupted by the user"
    if isinstance(ended, SearchFailed):
        said = " ".join(ended.written[0].split()).rstrip(".")
        return said[:1].lower() + said[1:]
    return f"the search failed with {type(ended).__name__}"


@dataclass
class Wish:
    """Whether the user wishes the search to end after what is running, whether its report is being written, and whether
    they wished so meanwhile."""

    to_stop: bool = False
    writing: bool = False
    meanwhile: bool = False

    def check(self) -> None:
        """Asked before anything is started that takes a while; raises KeyboardInterrupt where it should not be."""
        if self.to_stop:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Within, Ctrl-C waits. Raises KeyboardInterrupt at the end where it came; the next one interrupts at once."""
        self.writing, self.meanwhile = True, False
        try:
            yield
        finally:
            self.writing, self.to_stop = False, True
        if self.meanwhile:
            raise KeyboardInterrupt


@contextlib.contextmanager
def patient(wish: Wish, tell: Callable[[str], None]) -> Iterator[None]:
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
