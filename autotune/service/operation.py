"""Operation of the service: logs with request ids, metrics, liveness and readiness."""

import asyncio
import contextlib
import io
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, TextIO
from uuid import uuid4

import prometheus_client as prometheus
import sqlalchemy as sa
import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from prometheus_client.core import GaugeMetricFamily
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.core.errors import AutotuneError, StorageFailed
from autotune.core.text import printable
from autotune.core.units import format_bytes
from autotune.core.version import __version__
from autotune.service.access import caller, needs
from autotune.service.records import ENDED, RUNNING
from autotune.service.tables import events, reading, tokens, writing

STUCK_S = 15.0
"""Seconds without a turn of the dispatcher from which on the service is not ready; it makes one every 5 s."""

CHECKED_S = 2.0
"""Seconds for which the result of the checks is good: anybody may ask, and the checks write."""

HANGING_S = 8.0
"""Seconds after which checks that have not ended, for example of a database that does not answer, count as failed."""

LEAST_FREE_BYTES = 2**30
"""Bytes that must be free in the state folder for the service to be ready."""

OFTEN = ("/livez", "/readyz", "/metrics")
"""Paths that other programs request every few seconds: logged only if they fail."""

METHODS = ("GET", "HEAD", "POST", "DELETE")
SECONDS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
"""Buckets of waits and searches, in seconds."""

log = structlog.get_logger("autotune")
router = APIRouter()


def log_to_stderr(log_format: str) -> None:
    """Log of this process on standard error, a JSON object a line or as text; libraries' logs too, from INFO on."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks as text: the other forms hold local variables, and so bodies and tokens.
    ends: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if log_format == "text":
        ends = [_escape, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ends]
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _escape(_log: Any, _method: str, entry: Any) -> Any:
    """The entry without control characters, which a path or a name may hold and a terminal would obey."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in entry.items()}


def _traceback(out: TextIO, error: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write("\n".join(map(printable, text.getvalue().split("\n"))))


def install(app: FastAPI) -> None:
    """Count and log what this application answers; `app.state` has store, devices, dispatcher and engine already."""
    app.state.metrics = Metrics(app.state)
    app.state.checks = Checks(app.state)
    app.add_middleware(RequestLog, metrics=app.state.metrics)


class RequestLog:
    """Gives each request an id (its `X-Request-ID`, or a new one), sends it back, and logs and times the request."""

    def __init__(self, app: ASGIApp, metrics: "Metrics") -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if re.fullmatch(r"[\w.-]{1,64}", given, re.ASCII) else uuid4().hex
        request = Request(scope)
        request.state.request_id = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)  # of this request alone: it has a separate task
        status, streams, started = 500, False, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                status, streams = message["status"], headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            if not streams:
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if scope["method"] in METHODS else "other"
                self._metrics.http.labels(route, method, status).observe(seconds)
            self._metrics.refused.inc(status == 401)
            if status >= 400 or scope["path"] not in OFTEN:
                caller = getattr(request.state, "caller", None)
                log.info(
                    "request",
                    method=scope["method"],
                    path=scope["path"][:200],
                    status=status,
                    seconds=round(seconds, 4),
                    remote=scope["client"] and scope["client"][0],
                    user=caller and caller.user,
                )


class Metrics:
    """Numbers of one service in a separate registry: read when requested, counted since its start.

    No label names a search, a user or a model.
    """

    def __init__(self, state: Any) -> None:
        self._state, self._lock = state, threading.Lock()
        self._last = state.store.last_change()
        self.registry = prometheus.CollectorRegistry()
        self.registry.register(self)  # first: it counts for the metrics below
        prometheus.ProcessCollector(registry=self.registry)
        counter = partial(prometheus.Counter, registry=self.registry)
        histogram = partial(prometheus.Histogram, registry=self.registry)
        version = prometheus.Gauge("autotune_build_info", "Version", ["version"], registry=self.registry)
        version.labels(__version__).set(1)
        labels, buckets = ["route", "method", "status"], (0.005, 0.02, 0.1, 0.5, 2, 10)
        self.http = histogram("autotune_http_seconds", "Answers, without streams", labels, buckets=buckets)
        self.refused = counter("autotune_auth_failures", "Requests without a valid token")
        self._ended = counter("autotune_searches_ended", "Searches that ended", ["end"])
        self._probes = counter("autotune_probes", "Probes that ended", ["outcome"])
        self._restarts = counter("autotune_runner_restarts", "Runs of a search that were interrupted")
        self._waits = histogram("autotune_queue_wait_seconds", "From submission to first start", buckets=SECONDS)
        self._durations = histogram("autotune_search_seconds", "From first start to end", buckets=SECONDS)
        errors = counter("autotune_database_errors", "Statements that the database refused")
        sa.event.listen(state.engine, "handle_error", lambda _context: errors.inc())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The current numbers; the database's only while it answers."""
        state = self._state
        plain = {
            "streams": state.hub.streams,
            "state_free_bytes": shutil.disk_usage(state.settings.state).free,
            "dispatcher_turn_age_seconds": time.monotonic() - state.dispatcher.ticked_at,
        }
        with contextlib.suppress(StorageFailed), self._lock:
            self._count_events()
            searches = GaugeMetricFamily("autotune_searches", "Searches by state", labels=["state"])
            for name, number in state.store.count().items():
                searches.add_metric([name], number)
            names = state.devices.names
            idle = state.devices.free(search.lent for search in state.store.running())
            plain |= {"devices_lent": len(names) - len(idle), "devices": len(names)}
            yield searches
        for name, number in plain.items():
            yield GaugeMetricFamily(f"autotune_{name}", name.replace("_", " ").capitalize(), number)

    def _count_events(self) -> None:
        """Count the events since the last time; the table of events is the only source."""
        wanted = (events.c.id > self._last) & events.c.kind.in_(("state", "trial"))
        query = (
            sa.select(events.c.id, events.c.search_id, events.c.kind, events.c.body).where(wanted).order_by(events.c.id)
        )
        with reading(self._state.engine) as connection:
            rows = connection.execute(query).all()
        for number, search_id, kind, body in rows:
            self._last = number
            if kind == "trial":
                self._probes.labels(body["outcome"]).inc()
                continue
            state, search = body["state"], self._state.store.read(search_id)
            if state in ENDED:
                self._ended.labels(state).inc()
                if search and search.started_at and search.ended_at:
                    self._durations.observe((search.ended_at - search.started_at).total_seconds())
            elif state == RUNNING and body["attempt"] == 1 and search and search.started_at:
                self._waits.observe((search.started_at - search.created_at).total_seconds())
            elif body.get("reason"):
                self._restarts.inc()


@router.get("/metrics", dependencies=[needs("metrics")])
def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    content = prometheus.generate_latest(request.app.state.metrics.registry)
    return Response(content, media_type=prometheus.CONTENT_TYPE_LATEST)


@router.get("/livez")
async def livez() -> dict[str, str]:
    """Answer while the server is alive."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """Readiness to accept and run searches; the checks only for a caller with a token."""
    checks = await request.app.state.checks.results()
    ready = not any(checks.values())
    with contextlib.suppress(AutotuneError, HTTPException):
        await run_in_threadpool(caller, request)
        details = {"checks": {name: problem or "ok" for name, problem in checks.items()}}
        return JSONResponse({"ready": ready} | details, 200 if ready else 503)
    return JSONResponse({"ready": ready}, 200 if ready else 503)


def _database(state: Any) -> str:
    try:
        with writing(state.engine) as connection:
            connection.execute(sa.delete(tokens).where(sa.false()))  # needs the right to write, and writes nothing
    except AutotuneError as error:
        return error.message
    return ""


def _dispatcher(state: Any) -> str:
    seconds = time.monotonic() - state.dispatcher.ticked_at
    return state.dispatcher.failure if seconds < STUCK_S else f"made no turn for {seconds:.0f} s"


def _state_folder(state: Any) -> str:
    try:
        with tempfile.TemporaryFile(dir=state.settings.state) as file:
            file.write(b"ready")
        free = shutil.disk_usage(state.settings.state).free
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return "" if free > LEAST_FREE_BYTES else f"has {format_bytes(free)} left"


def _devices(state: Any) -> str:
    return state.devices.problem()  # type: ignore[no-any-return]


CHECKS = {"database": _database, "dispatcher": _dispatcher, "state folder": _state_folder, "devices": _devices}
"""Name of a check -> problem; empty if there is none."""


class Checks:
    """The checks of a service, made at most once in `CHECKED_S`, by one thread for any number of callers."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._made_at = float("-inf")
        self._making: asyncio.Future[dict[str, str]] | None = None

    async def results(self) -> dict[str, str]:
        """Name of a check -> problem; empty if there is none. Checks that hang are one."""
        if self._making is None or (self._making.done() and time.monotonic() > self._made_at + CHECKED_S):
            self._making = asyncio.ensure_future(run_in_threadpool(self._make))
        try:
            async with asyncio.timeout(HANGING_S):
                return await asyncio.shield(self._making)
        except TimeoutError:
            return {"checks": f"did not end within {HANGING_S:.0f} s"}

    def _make(self) -> dict[str, str]:
        results = {name: check(self._state) for name, check in CHECKS.items()}
        self._made_at = time.monotonic()
        return results
