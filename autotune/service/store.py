"""The searches of the service: their queue, their events, and the files of their reports.

queued → running → done | nothing_fits | failed | cancelled
   └──→ cancelled  └──→ queued again if it was interrupted, failed after too many interruptions

Writes are refused once another server has taken the database: `ServerLock`.
"""

import builtins
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any

from sqlalchemy import Connection, Engine, func, literal, select

from autotune.core.errors import InvalidRequest
from autotune.core.units import parse_seconds
from autotune.service.devices import JOIN, Waiting, check_devices, choose, matching_options
from autotune.service.records import (
    CANCELLED,
    DONE,
    ENDED,
    FAILED,
    MOST_ATTEMPTS,
    MOST_RESTARTS,
    QUEUED,
    RUNNING,
    SEARCH,
    Artifact,
    Change,
    Conflict,
    Event,
    KeyReused,
    LimitReached,
    Search,
    new_id,
)
from autotune.service.tables import (
    ServerLock,
    artifacts,
    audit,
    events,
    reading,
    searches,
    server,
    tokens,
    writing,
)

_EVENT = [events.c[field.name] for field in fields(Event)]
_MOST = {"interruptions": MOST_ATTEMPTS, "restarts": MOST_RESTARTS}
_NONE: dict[str, Any] = dict.fromkeys(_MOST, 0)
_ARTIFACT = [artifacts.c.name, artifacts.c.media_type, artifacts.c.sha256, func.length(artifacts.c.content)]


class Store:
    """Searches in the database; every method is one transaction, and may be called from any thread.

    on_change: called with a search's id after every committed change, in the thread that made it. lock: of the server; without
    one nothing is refused. Methods that change a search raise Conflict if it does not exist; methods that write raise
    DatabaseTaken; all raise StorageFailed.
    """

    def __init__(
        self,
        engine: Engine,
        on_change: Callable[[str], None] = lambda search_id: None,
        lock: ServerLock | None = None,
    ) -> None:
        self._engine = lock.engine if lock else engine
        self._on_change = on_change
        self._lock = lock

    # People -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        owner: str,
        name: str,
        request: Mapping[str, Any],
        *,
        priority: int = 0,
        idempotency_key: str | None = None,
        token_id: str | None = None,
        most_of_user: int = 20,
        most: int = 1000,
    ) -> tuple[Search, bool]:
        """The search, on disk when this returns, and whether it is new: the same key and request give the same search.

        Raises LimitReached if the limit of queued ones is reached, this owner's or in all; KeyReused for a key with another
        request.
        """
        digest = hashlib.sha256(json.dumps([name, priority, request], sort_keys=True).encode()).hexdigest()
        mine = searches.c.owner == owner
        with self._writing() as change:
            same_key = select(searches.c.request_sha256, *SEARCH).where(
                mine, searches.c.idempotency_key == idempotency_key
            )
            if idempotency_key is not None and (row := change.connection.execute(same_key).one_or_none()):
                if row.request_sha256 != digest:
                    raise KeyReused("This idempotency key was sent with another request.", "Use a new key.")
                return Search(*row[1:]), False
            _check_limits(change, owner, most_of_user, most)
            search_id, now = new_id()
            query = {"model": request["model"], "device": request.get("device") or "auto", "request": dict(request)}
            query |= {"idempotency_key": idempotency_key, "request_sha256": digest, "priority": priority}
            query |= {"token_id": token_id}
            counters = {"attempt": 0, "version": 0, **_NONE}
            values = {"id": search_id, "owner": owner, "name": name, "state": QUEUED, "created_at": now}
            change.connection.execute(searches.insert().values(values | query | counters))
            return change.enter(search_id, QUEUED), True

    def read(self, search_id: str) -> Search | None:
        """The search of this id, or None."""
        rows = self._rows(select(*SEARCH).where(searches.c.id == search_id))
        return Search(*rows[0]) if rows else None

    def list(
        self,
        *,
        state: str | None = None,
        owner: str | None = None,
        model: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[builtins.list[Search], str | None]:
        """A page of searches, newest first, and the cursor of the next page; None at the last.

        Raises InvalidRequest for a cursor that no page gave.
        """
        if cursor is not None and not re.fullmatch("[0-9a-f]{32}", cursor):
            raise InvalidRequest("The cursor is not valid.", "Begin with the first page.")
        wanted = {"state": state, "owner": owner, "model": model}
        conditions = [searches.c[name] == value for name, value in wanted.items() if value is not None]
        conditions += [searches.c.id < cursor] if cursor is not None else []
        query = select(*SEARCH[:-2]).where(*conditions).order_by(searches.c.id.desc()).limit(limit + 1)
        page = [Search(*row) for row in self._rows(query)]
        return page[:limit], page[limit - 1].id if len(page) > limit else None

    def count(self) -> dict[str, int]:
        """State -> number of searches in it."""
        rows = self._rows(select(searches.c.state, func.count()).group_by(searches.c.state))
        return dict.fromkeys((QUEUED, RUNNING, *ENDED), 0) | dict(rows)

    def position(self, search: Search) -> int | None:
        """Position in the queue, 1 for the next; None if it is not queued."""
        if search.state != QUEUED:
            return None
        same = (searches.c.priority == search.priority) & (searches.c.id <= search.id)
        ahead = (searches.c.priority > search.priority) | same
        rows = self._rows(select(func.count()).where(searches.c.state == QUEUED, ahead))
        return max(1, int(rows[0][0]))  # 0: it was claimed meanwhile

    def cancel(self, search_id: str, now: bool) -> Search:
        """Cancel a queued search at once, note the request for a running one, leave an ended one as it is."""
        with self._writing() as change:
            search = change.existing(search_id)
            if search.state == QUEUED:
                return change.enter(search_id, CANCELLED)
            how = "now" if now else search.cancel or "patient"
            return change.update(search_id, cancel=how) if search.state == RUNNING and how != search.cancel else search

    def resume(self, search_id: str, *, most_of_user: int = 20, most: int = 1000) -> Search:
        """Queue a cancelled or failed search again; raises Conflict for others, LimitReached as `submit` does."""
        with self._writing() as change:
            search = change.existing(search_id)
            if search.state not in (CANCELLED, FAILED):
                raise Conflict(f"The search is {search.state}.", "Only a cancelled or failed one can be resumed.")
            _check_limits(change, search.owner, most_of_user, most)
            results = dict.fromkeys(("headline", "statement", "problem", "result"))
            return change.enter(search_id, QUEUED, cancel=None, ended_at=None, lent=None, **_NONE, **results)

    def delete(self, search_id: str) -> None:
        """Remove an ended search with its events and artifacts; raises Conflict for others."""
        with self._writing() as change:
            search = change.existing(search_id)
            if search.state not in ENDED:
                raise Conflict(f"The search is {search.state}.", "Cancel it first.")
            change.connection.execute(searches.delete().where(searches.c.id == search_id))
            change.searches.append(search_id)

    # The dispatcher ---------------------------------------------------------------------------------------------

    def check_lock(self) -> None:
        """Raise the errors of `ServerLock.check`."""
        if self._lock is not None:
            self._lock.check()

    def claim(
        self, devices: Collection[str], most_of_user: int = 2, cards: Mapping[str, str] | None = None
    ) -> Search | None:
        """Start the next search that gets some of these free devices, or None.

        cards: of all devices (name -> card); by default there are no others. Left out are searches before their time, of owners
        with `most_of_user` running searches, and of tokens whose devices are used up. A search that wants any
        device gets the first. In which order: `choose`.
        """
        now = datetime.now(UTC)
        cards = dict.fromkeys(devices, "") if cards is None else cards
        wanted = {how for device in devices for how in matching_options(device)}
        running = select(searches.c.owner).where(searches.c.state == RUNNING).group_by(searches.c.owner)
        columns = searches.c["id", "device", "attempt", "started_at", "model", "token_id", "request"]
        query = select(*columns).where(searches.c.state == QUEUED, searches.c.device.in_(wanted))
        query = query.where(searches.c.not_before.is_(None) | (searches.c.not_before <= now))
        query = query.where(searches.c.owner.not_in(running.having(func.count() >= most_of_user)))
        query = query.order_by(searches.c.priority.desc(), searches.c.id).execution_options(yield_per=20)
        with self._writing() as change, change.connection.execute(query) as rows:
            connection, rooms = change.connection, _rooms(change.connection)
            queue = (
                Waiting(
                    row.request | {"device": row.device},
                    rooms.get(row.token_id, inf),
                    partial(_length, connection, row),
                    row,
                )
                for row in rows
            )
            chosen = choose(queue, cards, devices, _ends(connection, now))
            rows.close()
            if chosen is None:
                return None
            row, lent = chosen[0].row, chosen[1]
            attempt = {"attempt": row.attempt + 1, "started_at": row.started_at or now, "not_before": None}
            return change.enter(row.id, RUNNING, lent=lent, ends_at=_after(now, _timeout(row.request)), **attempt)

    def fail_unserved(self, cards: Mapping[str, str]) -> builtins.list[str]:
        """Fail the queued searches that request a device that none of these is (name -> card), and return their ids.

        They were submitted to a server with other devices; they can be resumed once it has them again.
        """
        query = select(searches.c.id, searches.c.device, searches.c.request).where(searches.c.state == QUEUED)
        failed = []
        for search_id, device, request in self._rows(query):
            try:
                check_devices({"card": "", **request, "device": device}, cards)
            except InvalidRequest as error:
                problem = {"type": "InvalidRequest", "message": error.message, "advice": error.advice}
                with self._writing() as change:
                    if change.existing(search_id).state == QUEUED:
                        change.enter(search_id, FAILED, problem["message"], problem=problem)
                        failed.append(search_id)
        return failed

    def begin_again(self, search_id: str, attempt: int, last_here: int) -> bool:
        """True if a later attempt than the last one on this machine has run: on another one, where its files are.

        The events of earlier measurements are set aside, as trials get the same numbers again. last_here: 0 if there was none.
        """
        runs = select(events.c.key).where(events.c.search_id == search_id, events.c.kind == "preparing")
        with self._writing() as change:
            numbers = [int(key.split(":")[1]) for key in change.connection.scalars(runs)]
            is_elsewhere = max(numbers, default=0) > last_here
            if is_elsewhere and change.running(search_id, attempt):
                mine = (events.c.search_id == search_id) & events.c.kind.in_(("trial", "confirmed"))
                key = literal(f"before {attempt}:") + events.c.key
                change.connection.execute(events.update().where(mine).values(kind="lost", key=key))
                change.update(search_id)
        return is_elsewhere

    def started(self, search_id: str, attempt: int, pid: int, pid_started: float) -> bool:
        """Record the process of this attempt; False if the attempt has ended."""
        with self._writing() as change:
            running = change.running(search_id, attempt) is not None
            return running and bool(change.update(search_id, pid=pid, pid_started=pid_started))

    def stopped(self, search_id: str, attempt: int) -> None:
        """Record that the process of this attempt has ended with its server; the next server queues the search again."""
        with self._writing() as change:
            if change.running(search_id, attempt):
                change.update(search_id, pid=None, pid_started=None)

    def requeue(
        self, search_id: str, attempt: int, reason: str, delay_s: float = 0.0, counter: str | None = "interruptions"
    ) -> Search:
        """Queue a search again after its attempt was interrupted; cancelled if that was requested, failed after too many.

        counter: `interruptions` or `restarts`, increased by one; None: neither. An attempt that has ended stays as it is.
        """
        with self._writing() as change:
            search = change.running(search_id, attempt)
            if search is None:
                return change.existing(search_id)
            counted = {counter: getattr(search, counter) + 1} if counter else {}
            if search.cancel is not None:
                return change.enter(search_id, CANCELLED, reason, **counted)
            for name, number in counted.items():
                if number >= _MOST[name]:
                    message = f"The search was interrupted {number} times, at last: {reason}"
                    problem = {"type": "Interrupted", "message": message, "advice": "Read its log, then resume it."}
                    return change.enter(search_id, FAILED, reason, problem=problem, **counted)
            wait = {"not_before": datetime.now(UTC) + timedelta(seconds=delay_s)} if delay_s else {}
            return change.enter(search_id, QUEUED, reason, lent=None, **counted, **wait)

    def end(
        self,
        search_id: str,
        attempt: int,
        state: str,
        *,
        headline: str | None = None,
        statement: str | None = None,
        result: Mapping[str, Any] | None = None,
        problem: Mapping[str, Any] | None = None,
        artifacts: Mapping[str, bytes] = {},
    ) -> bool:
        """End this attempt with its result and the files of its report; False if it has ended already."""
        results = {"headline": headline, "statement": statement, "result": result, "problem": problem}
        with self._writing() as change:
            if change.running(search_id, attempt) is None:
                return False
            change.keep(search_id, artifacts)
            change.enter(search_id, state, problem["message"] if problem else None, **results)
            return True

    def running(self) -> builtins.list[Search]:
        """The searches that have a process, or had one when the server ended."""
        return [Search(*row) for row in self._rows(select(*SEARCH).where(searches.c.state == RUNNING))]

    # Events and files -------------------------------------------------------------------------------------------

    def add_events(self, search_id: str, attempt: int, new: Sequence[Mapping[str, Any]]) -> int:
        """Add the events of {"key", "kind", "body"} with keys that the search does not have yet, and return their number.

        The last of them is the search's progress; with a new measurement earlier interruptions do not count any more.
        None is added if the attempt has ended.
        """
        with self._writing() as change:
            added = change.append(search_id, new) if change.running(search_id, attempt) else []
            if added:
                progress = added[-1]["body"]
                values = _NONE if any(event["kind"] in ("trial", "confirmed") for event in added) else {}
                if to_go := progress.get("seconds_to_go"):
                    values = values | {"ends_at": _after(datetime.now(UTC), to_go)}
                change.update(search_id, progress=progress, **values)
            return len(added)

    def events(self, search_id: str, after: int = 0, limit: int = 500) -> builtins.list[Event]:
        """The first events of a search with a greater `seq`."""
        query = select(*_EVENT).where(events.c.search_id == search_id, events.c.seq > after)
        return [Event(*row) for row in self._rows(query.order_by(events.c.seq).limit(limit))]

    def changes(self, after: int = 0, limit: int = 500) -> builtins.list[Event]:
        """The first changes of any search's state with a greater `id`."""
        query = select(*_EVENT).where(events.c.kind == "state", events.c.id > after)
        return [Event(*row) for row in self._rows(query.order_by(events.c.id).limit(limit))]

    def last_change(self) -> int:
        """The greatest `id` of an event; 0 if there is none."""
        return self._rows(select(func.max(events.c.id)))[0][0] or 0

    def artifacts(self, search_id: str) -> builtins.list[Artifact]:
        """The files of a search's report, by name."""
        query = select(*_ARTIFACT).where(artifacts.c.search_id == search_id).order_by(artifacts.c.name)
        return [Artifact(*row) for row in self._rows(query)]

    def artifact(self, search_id: str, name: str) -> tuple[Artifact, bytes] | None:
        """A file of a search's report, and its content; None if none has this name."""
        query = select(artifacts.c.content, *_ARTIFACT)
        rows = self._rows(query.where(artifacts.c.search_id == search_id, artifacts.c.name == name))
        return (Artifact(*rows[0][1:]), rows[0].content) if rows else None

    def forget(self, before: datetime) -> builtins.list[str]:
        """Delete data older than this time; return the ids of the ended searches whose events are deleted.

        Entries of the audit, searches that were cancelled before they were started, and the events of other ended searches.
        """
        old = (searches.c.state.in_(ENDED), searches.c.ended_at < before)
        rest = select(searches.c.id).where(*old)
        with self._writing() as change:
            change.connection.execute(server.update().values(audit_from=before))  # else a trigger refuses it
            change.connection.execute(audit.delete().where(audit.c.at < before))
            change.connection.execute(
                searches.delete().where(*old, searches.c.state == CANCELLED, searches.c.attempt == 0)
            )
            change.connection.execute(events.delete().where(events.c.search_id.in_(rest)))
            change.searches.append("")  # any
            return [*change.connection.scalars(rest)]

    def _rows(self, query: Any) -> Sequence[Any]:
        with reading(self._engine) as connection:
            return connection.execute(query).all()  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Change]:
        with writing(self._engine) as connection:
            yield (change := Change(connection))
        for search_id in dict.fromkeys(change.searches):
            self._on_change(search_id)


def _timeout(request: Mapping[str, Any]) -> float | None:
    return None if request.get("timeout") is None else parse_seconds(request["timeout"])


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)


def _ends(connection: Connection, now: datetime) -> dict[str, float | None]:
    """Lent device -> seconds until it is expected to be free; None if that is unknown or over."""
    rows = connection.execute(select(searches.c.lent, searches.c.ends_at).where(searches.c.state == RUNNING)).all()
    left = [(lent, (ends_at - now).total_seconds() if ends_at else 0.0) for lent, ends_at in rows if lent]
    return {name: seconds if seconds > 0 else None for lent, seconds in left for name in lent.split(JOIN)}


def _length(connection: Connection, row: Any) -> float | None:
    """Expected seconds of a queued search: its timeout, or the longest of the last five of its model, or None."""
    if (timeout := _timeout(row.request)) is not None:
        return timeout
    done = select(searches.c.started_at, searches.c.ended_at)
    done = done.where(searches.c.model == row.model, searches.c.state == DONE).order_by(searches.c.id.desc()).limit(5)
    return max(((end - start).total_seconds() for start, end in connection.execute(done)), default=None)


def _rooms(connection: Connection) -> dict[str | None, float]:
    """Token with a limit -> number of devices that it may have in addition."""
    limits = select(tokens.c.id, tokens.c.most_devices).where(tokens.c.most_devices.is_not(None))
    rooms: dict[str | None, float] = dict(connection.execute(limits).all())
    lent = select(searches.c.token_id, searches.c.lent).where(searches.c.state == RUNNING)
    for token_id, names in connection.execute(lent):
        if token_id in rooms and names:
            rooms[token_id] -= len(names.split(JOIN))
    return rooms


def _check_limits(change: Change, owner: str, most_of_user: int, most: int) -> None:
    """Raise LimitReached for a search more in the queue."""
    mine = func.count().filter(searches.c.owner == owner)
    queued = select(func.count(), mine).where(searches.c.state == QUEUED)
    total, own = change.connection.execute(queued).one()
    if own >= most_of_user or total >= most:
        whose = f"{owner} has {own}" if own >= most_of_user else f"There are {total}"
        raise LimitReached(f"{whose} searches in the queue, which is the limit.", "Wait, or cancel some of them.")
