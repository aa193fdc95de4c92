"""Values of the service: searches, their events and artifacts; and the transaction that changes them."""

import hashlib
import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, select

from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.service.tables import artifacts, events, searches

QUEUED, RUNNING, DONE = "queued", "running", "done"
NOTHING_FITS, FAILED, CANCELLED = "nothing_fits", "failed", "cancelled"
ENDED = (DONE, NOTHING_FITS, FAILED, CANCELLED)
MOST_ATTEMPTS, MOST_RESTARTS = 5, 50
"""Number of interruptions of a search, or of deaths of its server while it ran, without a measurement in between, after which it
has failed."""


@dataclass(frozen=True)
class Search:
    """A row of the table of searches; in a list without the long ones, `request` and `result`."""

    id: str
    owner: str
    name: str
    model: str
    device: str  # as wanted: auto, cpu, cuda, cuda:1
    priority: int
    state: str
    attempt: int  # number of starts
    interruptions: int  # since it was submitted or resumed, or last measured something
    restarts: int  # as interruptions, but of the server: by no fault of the search
    version: int  # one more at every change
    not_before: datetime | None
    cancel: str | None  # patient or now, if that is requested
    lent: str | None  # the device it runs or last ran on
    pid: int | None
    pid_started: float | None  # seconds since 1970, as psutil's create_time
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    headline: str | None
    statement: str | None
    problem: dict[str, Any] | None
    progress: dict[str, Any] | None  # the body of its latest event
    request: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None


@dataclass(frozen=True)
class Event:
    """Event of a search: `seq` counts within the search, `id` grows over all searches."""

    id: int
    search_id: str
    seq: int
    key: str
    at: datetime
    kind: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Artifact:
    """A file of a search's report; `size` in bytes."""

    name: str
    media_type: str
    sha256: str
    size: int


class Conflict(AutotuneError):
    """The state of the search does not allow this."""


class Forbidden(InvalidRequest):
    """The caller's role may not do this."""


class LimitReached(AutotuneError):
    """Too many searches are queued."""


class KeyReused(AutotuneError):
    """The idempotency key belongs to another request."""


SEARCH = [searches.c[field.name] for field in fields(Search)]
"""The columns of a `Search`, in its order."""
_TEXTS = {"html": "html", "csv": "csv", "md": "markdown", "py": "x-python", "log": "plain"}
_MEDIA_TYPES = {suffix: f"text/{kind}" for suffix, kind in _TEXTS.items()} | {
    "json": "application/json",
    "yaml": "application/yaml",
    "svg": "image/svg+xml",
    "parquet": "application/vnd.apache.parquet",
    "gz": "application/gzip",
}


class Change:
    """A writing transaction, and the searches that it has changed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.searches: list[str] = []

    def existing(self, search_id: str) -> Search:
        row = self.connection.execute(select(*SEARCH).where(searches.c.id == search_id)).one_or_none()
        if row is None:
            raise Conflict("This search does not exist any more.")
        return Search(*row)

    def running(self, search_id: str, attempt: int) -> Search | None:
        """The search, if this attempt of it is running."""
        search = self.existing(search_id)
        return search if (search.state, search.attempt) == (RUNNING, attempt) else None

    def update(self, search_id: str, **values: Any) -> Search:
        change = searches.update().where(searches.c.id == search_id).values(version=searches.c.version + 1, **values)
        self.searches.append(search_id)
        return Search(*self.connection.execute(change.returning(*SEARCH)).one())

    def enter(self, search_id: str, state: str, reason: str | None = None, **values: Any) -> Search:
        """Change the state, and append the event of it; the process of the attempt, if there was one, has ended."""
        ended = {"ended_at": datetime.now(UTC)} if state in ENDED else {}
        search = self.update(search_id, state=state, pid=None, pid_started=None, **ended | values)
        body = {"state": state, "attempt": search.attempt, "headline": search.headline, "reason": reason}
        key = f"state:{search.attempt}:{state}"
        same = select(func.count()).where(events.c.search_id == search_id, events.c.key.startswith(key))
        number = self.connection.scalar(same)
        event = {"key": f"{key}:{number + 1}" if number else key, "kind": "state"}
        self.append(search_id, [event | {"body": {name: value for name, value in body.items() if value is not None}}])
        return search

    def append(self, search_id: str, new: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Append the events with keys that the search does not have yet, and return them."""
        mine = events.c.search_id == search_id
        keys = {event["key"]: event for event in reversed(new)}
        present = {*self.connection.scalars(select(events.c.key).where(mine, events.c.key.in_(keys)))}
        added = [event for event in new if keys[event["key"]] is event and event["key"] not in present]
        last = self.connection.scalar(select(func.max(events.c.seq)).where(mine)) or 0
        for seq, event in enumerate(added, last + 1):
            values = {"search_id": search_id, "seq": seq, "at": datetime.now(UTC)}
            values |= {name: event[name] for name in ("key", "kind", "body")}
            self.connection.execute(events.insert().values(values))
        return added

    def keep(self, search_id: str, files: Mapping[str, bytes]) -> None:
        """Store the files of a report, instead of those of an earlier one; without new ones these stay."""
        if files:
            self.connection.execute(artifacts.delete().where(artifacts.c.search_id == search_id))
        for name, content in files.items():
            kind = _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
            row = artifacts.insert().values(search_id=search_id, name=name, media_type=kind, content=content)
            self.connection.execute(row.values(sha256=hashlib.sha256(content).hexdigest()))


def new_id() -> tuple[str, datetime]:
    """An id that sorts by time, to a quarter of a microsecond, and its time: a UUID of version 7 as hexadecimal digits.

    RFC 9562, sections 5.7 and 6.2 (method 3).
    """
    now = time.time_ns()
    milliseconds, rest = divmod(now, 10**6)
    number = milliseconds << 80 | 7 << 76 | (rest * 4096 // 10**6) << 64 | 2 << 62 | secrets.randbits(62)
    return uuid.UUID(int=number).hex, datetime.fromtimestamp(now / 1e9, UTC)
