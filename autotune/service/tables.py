"""Tables of the service's database, and its connections: SQLite or PostgreSQL, one writing transaction at a time."""

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil
import sqlalchemy as sa
from sqlalchemy import Column, Connection, Engine, ForeignKey, Index, Integer, Table, Text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, TimeoutError

from autotune.core.errors import InvalidRequest, StorageFailed

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.glusterfs"}
"""File systems on which locks and the shared memory of SQLite's write-ahead log do not hold between machines."""
OLDEST_SQLITE = (3, 35)
"""The first version with RETURNING. Python has the one of its system: RHEL 9's is 3.34."""
_WRITER, SERVER = 0x6175746F, 0x74756E65
"""Advisory locks of PostgreSQL: of the transaction that writes, and of the server that holds the database."""

LOCKED_S = 5
"""Seconds that a transaction waits for another one's lock: one of this server has it for a moment."""
DEAD_S, PROBE_S, PROBES = 5, 2, 3
"""Seconds of silence after which a connection is probed, seconds between probes, and probes without a response that end it."""
TAKE_AGAIN_S = 120.0
"""Seconds in which a lost lock must be taken again: longer than PostgreSQL needs to end the connection that had it."""


class Stamp(sa.TypeDecorator):  # type: ignore[misc]  # SQLAlchemy is not checked
    """A time in UTC, aware of its zone in Python with every database."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Any) -> datetime | None:
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value and (value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC))


def _required(kind: Any, *names: str) -> list[Column]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[Column]:
    return [Column(name, kind) for name in names]


def _of_search(**options: Any) -> Column:
    return Column("search_id", Text, ForeignKey("searches.id", ondelete="CASCADE"), nullable=False, **options)


metadata = sa.MetaData()
document = sa.JSON(none_as_null=True)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "user", "role", "secret_sha256", "created_by"),
    *_required(Stamp, "created_at"),
    *_optional(Stamp, "expires_at", "revoked_at"),
    *_optional(sa.Date, "last_used_on"),
    *_optional(Integer, "most_devices"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_sha256", Text, primary_key=True),
    Column("token_id", Text, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    *_required(Stamp, "created_at", "expires_at"),
)

# What the columns mean: `records.Search`; ends_at: when a running one is expected to end.
# Long columns are last: a list of searches does not read the pages that these spill over to.
searches = Table(
    "searches",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "owner", "name", "model", "device", "state", "request_sha256"),
    *_required(Integer, "priority", "attempt", "interruptions", "restarts", "version"),
    *_required(Stamp, "created_at"),
    *_optional(Text, "cancel", "lent", "idempotency_key", "token_id"),
    *_optional(Stamp, "not_before", "started_at", "ended_at", "ends_at"),
    *_optional(Integer, "pid"),
    *_optional(sa.Float, "pid_started"),
    *_optional(Text, "headline", "statement"),
    *_optional(document, "problem", "progress"),
    *_required(document, "request"),
    *_optional(document, "result"),
    Index("searches_key", "owner", "idempotency_key", unique=True),
    Index("searches_state", "state", "id"),
    Index("searches_owner", "owner", "id"),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_search(),
    *_required(Integer, "seq"),
    *_required(Text, "key", "kind"),
    *_required(Stamp, "at"),
    *_required(document, "body"),
    Index("events_seq", "search_id", "seq", unique=True),
    Index("events_key", "search_id", "key", unique=True),
    sqlite_autoincrement=True,  # else the id of a deleted event is used again
)

artifacts = Table(
    "artifacts",
    metadata,
    _of_search(primary_key=True),
    Column("name", Text, primary_key=True),
    *_required(Text, "media_type", "sha256"),
    *_required(sa.LargeBinary, "content"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    *_required(Stamp, "at"),
    *_required(Text, "action", "outcome"),
    *_optional(Text, "user", "token_id", "search_id", "remote"),
    Index("audit_at", "at"),
    sqlite_autoincrement=True,
)

server = Table(  # one row; epoch: number of servers that have taken the database; audit_from: the audit's older entries may go
    "server",
    metadata,
    Column("id", Integer, primary_key=True),
    *_required(Integer, "epoch"),
    *_optional(Stamp, "audit_from"),
)


class DatabaseTaken(StorageFailed):
    """Another server has the database or the state folder, or has had it since this one took it."""


class DatabaseAway(StorageFailed):
    """The database refuses, or does not answer."""


def open_database(url: str) -> Engine:
    """The database at this URL, with the tables of this version. Raises as `connect_database` and `migrate` do."""
    engine = connect_database(url)
    migrate(engine)
    return engine


def used_database(url: str) -> Engine:
    """The database at this URL as a server of this version has used it; nothing is created or migrated.

    Raises as `connect_database`, and InvalidRequest if no server has used it, or one of another version.
    """
    with contextlib.ExitStack() as opened:
        engine = connect_database(url, create=False)
        opened.callback(engine.dispose)
        revision, head, _ = revisions(engine)
        if revision is None:
            raise _unused(engine)
        if revision != head:
            message = f"The database {engine.url} is of another version of autotune."
            raise InvalidRequest(message, "Use that version, or start the server of this one first.")
        opened.pop_all()
    return engine


def revisions(engine: Engine) -> tuple[str | None, str, bool]:
    """(revision of the database, None if no server has used it; this version's; the former is known to this version)."""
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    versions = ScriptDirectory.from_config(_migrations())
    with reading(engine) as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    return (
        revision,
        versions.get_current_head() or "",
        revision in {each.revision for each in versions.walk_revisions()},
    )


def _unused(engine: Engine) -> InvalidRequest:
    advice = "Start it first, or name the --state or --database that it uses."
    return InvalidRequest(f"No autotune serve has used the database {engine.url}.", advice)


def _migrations() -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "autotune.service:migrations")
    config.set_main_option("path_separator", "os")
    return config


def migrate(engine: Engine) -> None:
    """Create the tables of this version, or migrate them; raises StorageFailed if a newer version wrote the database."""
    from alembic import command
    from alembic.util import CommandError

    config = _migrations()
    try:
        with writing(engine) as connection:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except CommandError as error:
        engine.dispose()
        raise StorageFailed(
            f"The database {engine.url} was written by a newer version of autotune, or by another program.",
            "Install that version, or name another --database.",
        ) from error


def connect_database(url: str, create: bool = True) -> Engine:
    """The database at this URL as it is; create: make the file of SQLite and its folder, which only this user may read.

    Raises InvalidRequest for a URL of neither SQLite (a file) nor PostgreSQL, for an old SQLite, and without `create` for a
    file that does not exist; StorageFailed if its folder cannot be used. A server out of reach shows in the first transaction.
    """
    try:
        address = sa.make_url(url)
        if address.get_backend_name() == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
            options = {"connect_timeout": 10, "tcp_user_timeout": 1000 * (DEAD_S + PROBES * PROBE_S)}
            options |= {"keepalives_idle": DEAD_S, "keepalives_interval": PROBE_S, "keepalives_count": PROBES}
            # Without an encoding psycopg returns bytes from a database in SQL_ASCII.
            encoded = options | {"client_encoding": "utf8"}
            engine = sa.create_engine(address, pool_pre_ping=True, connect_args=encoded)
            sa.event.listen(engine, "connect", _set_up_postgresql)
        elif address.drivername == "sqlite" and address.database not in (None, "", ":memory:"):
            if sqlite3.sqlite_version_info < OLDEST_SQLITE:
                message = f"This Python has SQLite {sqlite3.sqlite_version}; the service needs 3.35 or newer."
                raise InvalidRequest(message, "Use another Python, or --database postgresql://user@host/name.")
            engine = sa.create_engine(address, connect_args={"timeout": LOCKED_S})
            if create:
                _create_file(Path(address.database))
            elif not Path(address.database).exists():
                raise _unused(engine)
            sa.event.listen(engine, "connect", _set_up_sqlite)
        else:
            raise ValueError(address.drivername)
    except ImportError as error:
        raise InvalidRequest("PostgreSQL needs psycopg.", "Run: pip install 'hf-autotune[postgres]'") from error
    except (ArgumentError, ValueError) as error:
        raise InvalidRequest(
            "The --database is neither a file of SQLite nor a database of PostgreSQL.",
            "Give it as sqlite:////absolute/path.db or as postgresql://user@host/name.",
        ) from error
    sa.event.listen(engine, "begin", _begin)
    return engine


def _create_file(path: Path) -> None:
    """Create it and its folder for this user alone, as SQLite would let others read it; raises StorageFailed."""
    _prepare_folder(path.parent)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}.", "Name another --database.") from error


def _prepare_folder(folder: Path) -> None:
    """Create it; raises StorageFailed if that is impossible, or if it is on a network file system."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error.strerror}.", "Name another --state.") from error
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    path = folder.resolve()
    kind = next((mounts[str(each)] for each in (path, *path.parents) if str(each) in mounts), "")
    if kind in NETWORK_FILE_SYSTEMS:
        message = f"{folder} is on a network file system ({kind}), where SQLite and locks are not safe."
        raise StorageFailed(message, "Name a --state on a local disk.")


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin in `_begin`, not when the driver would begin them
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}").close()


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    """Let PostgreSQL notice a dead connection as soon as this side does: it keeps its locks until then."""
    connection.autocommit = True
    settings = {"keepalives_idle": DEAD_S, "keepalives_interval": PROBE_S, "keepalives_count": PROBES}
    settings |= {"user_timeout": 1000 * (DEAD_S + PROBES * PROBE_S)}
    commands = [f"SET tcp_{name} = {value}" for name, value in settings.items()]
    connection.execute("; ".join([*commands, f"SET lock_timeout = '{LOCKED_S}s'"]))
    connection.autocommit = False


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif writes:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITER)))


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes, on disk at its end.

    There is one at a time in the whole database: what it has read stays true, and ids of events become visible in their
    order.

    Raises DatabaseAway if the database refuses, InvalidRequest for texts that it cannot hold; with the engine of a `ServerLock`
    DatabaseTaken once another server has taken the database.
    """
    with _reporting(engine), engine.execution_options(writes=True).begin() as connection:
        if (epoch := connection.get_execution_options().get("epoch")) is not None:
            check_epoch(connection, epoch)
        yield connection


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads, at the same time as any other. Raises the errors of `writing`."""
    with _reporting(engine), engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def _reporting(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise InvalidRequest("A text holds characters that cannot be stored.") from error
    except IntegrityError:  # a mistake of this program
        raise
    except (DBAPIError, sqlite3.Error, TimeoutError) as error:
        cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        advice = "Check that it runs, and the space on its disk."
        if "database is locked" in cause or "lock timeout" in cause:
            cause = f"another process has had it locked for {LOCKED_S} s"
            advice = "End what holds it, as a backup or a shell of the database."
        raise DatabaseAway(f"The database {engine.url} cannot be used: {cause}.", advice) from error


def check_epoch(connection: Connection, epoch: int) -> None:
    """Raise DatabaseTaken if another server has taken the database since the one of this epoch.

    In a transaction of `writing` this stays true until its end.
    """
    if connection.scalar(sa.select(server.c.epoch)) != epoch:
        message = f"Another autotune serve has taken the database {connection.engine.url}."
        raise DatabaseTaken(message, "Only one server at a time may use a database: see which one is to stay.")


_ADVICE = "Stop that one first, or give this one another --state and --database."


class ServerLock:
    """Context that holds the right to be the one server of a database and of a state folder.

    Files are locked, and with PostgreSQL a session holds an advisory lock. Whoever has them raises the epoch of the database,
    and `check_epoch` refuses writes of a server of an earlier epoch, whether it has noticed its loss or not.
    Entering it migrates the tables, and raises DatabaseTaken while another server is there, else the errors of `migrate`.

    engine: within, its writes are refused once another server has taken the database.
    """

    def __init__(self, engine: Engine, state_folder: Path) -> None:
        folders = [state_folder] + ([Path(engine.url.database).parent] if engine.dialect.name == "sqlite" else [])
        self._engine, self._paths = engine, {folder.resolve() / "serve.lock" for folder in folders}
        self.engine = engine
        self._files: dict[Path, IO[str]] = {}
        self._session: Connection | None = None
        self._one_at_a_time, self._lost_at = threading.Lock(), float("inf")
        self.epoch = 0

    def __enter__(self) -> Self:
        try:
            for path in self._paths:
                _prepare_folder(path.parent)
            self._lock_files()
            if not self._lock_session():
                raise DatabaseTaken(f"Another autotune serve uses the database {self._engine.url}.", _ADVICE)
            migrate(self._engine)
            with writing(self._engine) as connection:
                raised = server.update().values(epoch=server.c.epoch + 1).returning(server.c.epoch)
                self.epoch = connection.scalar(raised) or 0
            self.engine = self._engine.execution_options(epoch=self.epoch)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def check(self) -> None:
        """Take a lost lock again: a lock file that was removed, or the lock of a session that was cut. From any thread.

        Raises DatabaseTaken if another server is there now, or was in between, or if the lock cannot be taken again within
        `TAKE_AGAIN_S`; StorageFailed until then, and if the database is out of reach.
        """
        with self._one_at_a_time:
            self._lock_files()
            has_session = self._lock_session()
            with reading(self._engine) as connection:
                check_epoch(connection, self.epoch)
            now = time.monotonic()
            self._lost_at = float("inf") if has_session else min(self._lost_at, now)
            if not has_session:  # the session that was lost may have the lock until PostgreSQL notices
                kind = DatabaseTaken if now > self._lost_at + TAKE_AGAIN_S else StorageFailed
                raise kind(f"The database {self._engine.url} is locked by another session.", _ADVICE)

    def _lock_files(self) -> None:
        for path in self._paths:
            self._lock_file(path)

    def _lock_file(self, path: Path) -> None:
        with contextlib.suppress(OSError, KeyError):
            if os.path.samestat(os.fstat(self._files[path].fileno()), path.stat()):
                return
        try:
            file = path.open("a")
        except OSError as error:
            raise StorageFailed(f"{path} cannot be written: {error.strerror}.", "Name another --state.") from error
        if path in self._files:
            self._files.pop(path).close()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise DatabaseTaken(f"Another autotune serve uses {path.parent}.", _ADVICE) from error
        self._files[path] = file

    def _lock_session(self) -> bool:
        """True if a session of this server has the advisory lock; True for SQLite, which needs none."""
        if self._engine.dialect.name == "sqlite":
            return True
        if self._session is not None:
            with contextlib.suppress(DBAPIError):
                self._session.execute(sa.select(1))
                return True
            self._close_session()
        with _reporting(self._engine):
            session = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            session.detach()  # closed at the end, not given to others together with its lock
            if not session.scalar(sa.select(sa.func.pg_try_advisory_lock(SERVER))):
                session.close()
                return False
            self._session = session
            return True

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(DBAPIError):
                session.close()

    def _release(self) -> None:
        self._close_session()
        while self._files:
            self._files.popitem()[1].close()
