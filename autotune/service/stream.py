"""Server-sent events: the events in the table after the last received one, then new ones."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.types import Receive, Scope, Send

from autotune.service.problems import Problem

MEDIA_TYPE = "text/event-stream"
MOST_EVENTS = 500
"""Events that are read at once."""
MOST_OF_TOKEN, MOST = 10, 200
"""Streams that are open at once."""
RETRY_MS = 2000
SILENCE_S = 15.0
"""Seconds after which a comment shows that the stream is alive, and its token is checked again."""
EVERY = ""
"""Value of a search's id that stands for all searches."""

Find = Callable[[int, int], tuple[list[dict[str, Any]], bool]]
"""Number of an event, largest number of events -> events after it (`responses.ShownEvent`), and True if there will be no more."""
Sent = tuple[bytes, int, bool]
"""Events as they are sent, the number of the last one, and True if there will be no more."""


class Hub:
    """The open streams, and the events that they wait for. Streams at the same event of the same search read it once.

    is_valid: True if the token of this id is valid.
    """

    def __init__(self, is_valid: Callable[[str], bool]) -> None:
        self._is_valid = is_valid
        self._waiting: dict[asyncio.Event, str] = {}
        self._reads: dict[tuple[str, int], asyncio.Task[Sent]] = {}  # that go on, begun since the last change
        self._open: Counter[str] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    def wake(self, search_id: str) -> None:
        """Make the streams of this search read the table; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake, search_id)

    def close(self) -> None:
        """End all streams; from any thread."""
        self._is_closed = True
        self.wake(EVERY)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._open.total()

    def stream(self, token_id: str, search_id: str, after: int, find: Find) -> StreamingResponse:
        """Answer with a search's events, or the events of EVERY search, as long as the token is valid.

        Raises Problem 429 if the limit of open streams is reached.
        """
        if self._open[token_id] >= MOST_OF_TOKEN or self.streams >= MOST:
            raise Problem(429, "Too many streams are open.", "Close one, or read the events as JSON.")
        self._loop = asyncio.get_running_loop()
        self._open[token_id] += 1
        return _Stream(self._sent(token_id, search_id, after, find), lambda: self._release(token_id))

    def _release(self, token_id: str) -> None:
        self._open[token_id] -= 1
        self._open = +self._open

    def _wake(self, search_id: str) -> None:
        for key in [key for key in self._reads if search_id == EVERY or key[0] in (search_id, EVERY)]:
            del self._reads[key]
        for event, wanted in self._waiting.items():
            if search_id == EVERY or wanted in (search_id, EVERY):
                event.set()

    async def _sent(self, token_id: str, search_id: str, after: int, find: Find) -> AsyncIterator[bytes]:
        changed, checked_at = asyncio.Event(), time.monotonic()
        self._waiting[changed] = search_id
        try:
            yield format_sse_event(retry=RETRY_MS)
            while not self._is_closed:
                changed.clear()
                if time.monotonic() - checked_at >= SILENCE_S:
                    if not await run_in_threadpool(self._is_valid, token_id):
                        return
                    checked_at = time.monotonic()
                sent, after, is_last = await self._shared(search_id, after, find)
                if sent:
                    yield sent
                if is_last:
                    return
                if not sent:
                    try:
                        async with asyncio.timeout(SILENCE_S):
                            await changed.wait()
                    except TimeoutError:
                        yield KEEPALIVE_COMMENT
        finally:
            del self._waiting[changed]

    async def _shared(self, search_id: str, after: int, find: Find) -> Sent:
        """Result of reading there, by one reader for all callers meanwhile and since the search's last change."""
        key = (search_id, after)
        if key not in self._reads:
            task = self._reads[key] = asyncio.create_task(_formatted(find, after))
            task.add_done_callback(lambda task: self._reads.get(key) is task and self._reads.pop(key))
        return await asyncio.shield(self._reads[key])


async def _formatted(find: Find, after: int) -> Sent:
    events, is_last = await run_in_threadpool(find, after, MOST_EVENTS)
    data = [json.dumps({"search": event["search"], **event["body"]}) for event in events]
    sent = [
        format_sse_event(id=str(event["id"]), event=event["kind"], data_str=text)
        for event, text in zip(events, data, strict=True)
    ]
    return b"".join(sent), events[-1]["id"] if events else after, is_last


class _Stream(StreamingResponse):
    """A stream that gives back its share of the limit at any end."""

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
