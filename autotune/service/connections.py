"""Connections of the server: deadlines for clients, and their number at a time."""

import asyncio
import contextlib
import ssl
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds within which a new connection must be encrypted, and a request's head must arrive."""

SILENCE_S, BODY_S = 10.0, 30.0
"""Seconds without a byte of a body, and for the whole of it."""

READING_S = 30.0
"""Seconds that a client may take before it reads more of a response."""

MOST_WAITING = 256
"""Connections that wait for their clients: beyond these the one that has waited longest is closed."""

MOST_CONNECTIONS = 512
"""Connections from which on requests are answered with 503."""


class Connection(H11Protocol):
    """A connection of uvicorn with deadlines for each step of its client: encrypt, send a request, read the response.

    tls: certificate and key of the server; None: it does not encrypt. While a response is computed there is no deadline.
    """

    def __init__(self, *args: Any, tls: ssl.SSLContext | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_since: float | None = None
        self._tls = tls
        self._encrypting: asyncio.Task[None] | None = None
        self._early = b""
        self._is_reading = True  # the client
        self._awaited = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch()
        waiting = [each for each in self.connections if isinstance(each, Connection) and each.waits_since is not None]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=lambda each: each.waits_since or 0.0).cut()
        if self._tls is not None:
            self._encrypting = self.loop.create_task(self._encrypt(transport, self._tls))

    async def _encrypt(self, transport: Any, tls: ssl.SSLContext) -> None:
        """The handshake; the connection is closed if it fails. Here and not in the listener: there nothing could end it."""
        encrypted = None
        with contextlib.suppress(OSError):  # ssl.SSLError and TimeoutError are such errors
            encrypted = await self.loop.start_tls(transport, self, tls, server_side=True, ssl_handshake_timeout=HEAD_S)
        if encrypted is None:
            self.connection_lost(None)  # asyncio calls this only after a handshake
            return
        self._encrypting = None
        super().connection_made(encrypted)
        if early := self._early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._encrypting:  # it came with the last packet of the handshake
            self._early += data
            return
        super().data_received(data)
        self._watch(has_sent=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_reading = False
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_reading = True
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_for("", None)

    def cut(self) -> None:
        """Close it at once, whatever is still to be sent."""
        self._wait_for("", None)
        self.transport.abort()

    def _watch(self, has_sent: bool = False) -> None:
        """Set the deadline of the client's next step. has_sent: bytes have just come."""
        now = time.monotonic()
        if not self._is_reading:
            self._wait_for("reading", now + READING_S)
        elif self.conn.their_state is h11.SEND_BODY:
            begun = self.waits_since if self._awaited == "body" and self.waits_since is not None else now
            self._wait_for("body", min(now + SILENCE_S, begun + BODY_S), again=has_sent)
        elif self.cycle is None or self.cycle.response_complete:
            self._wait_for("head", now + HEAD_S)
        else:
            self._wait_for("", None)

    def _wait_for(self, what: str, until: float | None, again: bool = False) -> None:
        """Cut the connection at this time (monotonic seconds). again: also if it waits for the same already."""
        if what == self._awaited and not again:
            return
        if what != self._awaited:
            self.waits_since = time.monotonic() if what else None
        self._awaited = what
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if until is None else self.loop.call_later(until - time.monotonic(), self.cut)
