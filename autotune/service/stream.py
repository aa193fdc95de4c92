"""Server-sent events: what the table of events has after the last that was received, then what comes."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.types import Receive, Scope, Send

from autotune.service.problems import Problem

MEDIA_TYPE = "text/event-stream"
MOST_OF_TOKEN, MOST = 10, 200
"""Streams that are open at once."""
RETRY_MS = 2000
SILENCE_S = 15.0
"""Seconds after which a comment shows that the stream is alive."""
EVERY = ""
"""In place of a search's id: all of them."""

Item = tuple[int, str, dict[str, Any]]
"""An event: its number, its kind, its data."""


class Hub:
    """The open streams, and what they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, str] = {}
        self._open: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def wake(self, search_id: str) -> None:
        """Have the streams of this search look into the table; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake, search_id)

    def close(self) -> None:
        """End all streams; from any thread."""
        self._is_closed = True
        self.wake(EVERY)

    @property
    def streams(self) -> int:
        """Number of those that are open."""
        return self._open.total()

    def stream(
        self, token_id: str, search_id: str, after: int, read: Callable[[int], tuple[Sequence[Item], bool]]
    ) -> StreamingResponse:
        """Answer with a search's events, or those of EVERY one.

        read: number of an event -> events after it, and whether there will be no more. Raises Problem 429 where as many
        streams are open as may be.
        """
        if self._open[token_id] >= MOST_OF_TOKEN or self.streams >= MOST:
            raise Problem(429, "Too many streams are open.", "Close one, or read the events as JSON.")
        self._loop = asyncio.get_running_loop()
        self._open[token_id] += 1
        return _Stream(self._items(search_id, after, read), lambda: self._release(token_id))

    def _release(self, token_id: str) -> None:
        self._open[token_id] -= 1
        self._open = +self._open

    def _wake(self, search_id: str) -> None:
        for event, wanted in self._waiting.items():
            if search_id == EVERY or wanted in (search_id, EVERY):
                event.set()

    async def _items(
        self, search_id: str, after: int, read: Callable[[int], tuple[Sequence[Item], bool]]
    ) -> AsyncIterator[bytes]:
        changed = asyncio.Event()
        self._waiting[changed] = search_id
        try:
            yield format_sse_event(retry=RETRY_MS)
            while not self._is_closed:
                changed.clear()
                items, is_last = await run_in_threadpool(read, after)
                for after, kind, data in items:
                    yield format_sse_event(id=str(after), event=kind, data_str=json.dumps(data))
                if is_last:
                    return
                if not items:
                    try:
                        await asyncio.wait_for(changed.wait(), SILENCE_S)
                    except TimeoutError:
                        yield KEEPALIVE_COMMENT
        finally:
            del self._waiting[changed]


class _Stream(StreamingResponse):
    """A stream that gives its place back however it ends."""

    def __init__(self, content: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(
            content, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
