"""Tables of the service's database, and its connections: SQLite or PostgreSQL, one writing transaction at a time."""

import contextlib
import fcntl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from sqlalchemy import Column, Connection, Engine, ForeignKey, Index, Integer, Table, Text
from sqlalchemy.exc import ArgumentError, DataError, InterfaceError, OperationalError, TimeoutError

from autotune.core.errors import InvalidRequest, StorageFailed

NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.glusterfs"}
"""On these, locks and the shared memory of SQLite's write-ahead log do not hold between machines."""
_WRITER, _SERVER = 0x6175746F, 0x74756E65
"""Advisory locks of PostgreSQL: of the transaction that writes, and of the server that holds the database."""


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
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_sha256", Text, primary_key=True),
    Column("token_id", Text, ForeignKey("tokens.id", ondelete="CASCADE"), nullable=False),
    *_required(Text, "form_secret"),
    *_required(Stamp, "created_at", "expires_at"),
)

searches = Table(  # what the columns mean: `records.Search`
    "searches",
    metadata,
    Column("id", Text, primary_key=True),
    *_required(Text, "owner", "name", "model", "device", "state", "request_sha256"),
    *_required(Integer, "priority", "attempt", "interruptions", "version"),
    *_required(Stamp, "created_at"),
    *_required(document, "request"),
    *_optional(Text, "cancel", "lent", "headline", "statement", "idempotency_key"),
    *_optional(Stamp, "not_before", "started_at", "ended_at"),
    *_optional(Integer, "pid"),
    *_optional(sa.Float, "pid_started"),
    *_optional(document, "problem", "progress", "result"),
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
)


def open_database(url: str) -> Engine:
    """The database at this URL, with the tables of this version. Raises as `connect_database` and `migrate` do."""
    engine = connect_database(url)
    migrate(engine)
    return engine


def migrate(engine: Engine) -> None:
    """Create the tables of this version, or migrate them; raises StorageFailed where a newer version wrote the database."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", "autotune.service:migrations")
    config.set_main_option("path_separator", "os")
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


def connect_database(url: str) -> Engine:
    """The database at this URL as it is.

    Raises InvalidRequest for a URL that is of neither SQLite (a file) nor PostgreSQL; StorageFailed where its folder cannot be
    used. A server out of reach is met by the first transaction.
    """
    try:
        address = sa.make_url(url)
        if address.get_backend_name() == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
            engine = sa.create_engine(address, pool_pre_ping=True, connect_args={"connect_timeout": 10})
        elif address.drivername == "sqlite" and address.database not in (None, "", ":memory:"):
            _prepare_folder(Path(address.database).parent)
            engine = sa.create_engine(address, connect_args={"timeout": 30})  # waits so long for another writer
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


def _prepare_folder(folder: Path) -> None:
    """Create it; raises StorageFailed where that is impossible, or where it is on a network file system."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error.strerror}.", "Name another --state.") from error
    mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    kind = next((mounts[str(path)] for path in (place, *place.parents) if str(path) in mounts), "")
    if kind in NETWORK_FILE_SYSTEMS:
        message = f"{folder} is on a network file system ({kind}), where SQLite and locks are not safe."
        raise StorageFailed(message, "Name a --state on a local disk.")


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin in `_begin`, not where the driver would begin them
    for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}").close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif writes:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITER)))


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes, on disk at its end. There is one at a time in the whole database: what it has read stays true,
    and ids of events become visible in their order.

    Raises StorageFailed where the database refuses, InvalidRequest for texts that it cannot hold.
    """
    with _reporting(engine), engine.execution_options(writes=True).begin() as connection:
        yield connection


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that only reads, at the same time as any other. Raises as `writing` does."""
    with _reporting(engine), engine.connect() as connection:
        yield connection


@contextlib.contextmanager
def _reporting(engine: Engine) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise InvalidRequest("A text holds characters that cannot be stored.") from error
    except (OperationalError, InterfaceError, TimeoutError) as error:
        cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        advice = "Check that it runs, and the space on its disk."
        raise StorageFailed(f"The database {engine.url} cannot be used: {cause}.", advice) from error


@contextlib.contextmanager
def hold_database(engine: Engine, state_folder: Path) -> Iterator[None]:
    """Be the one server of this database and this folder; raises StorageFailed where another one is."""
    advice = "Stop that one first, or give this one another --state and --database."
    folders = [state_folder] + ([Path(engine.url.database).parent] if engine.dialect.name == "sqlite" else [])
    with contextlib.ExitStack() as held:
        for folder in {folder.resolve() for folder in folders}:
            _prepare_folder(folder)
            lock = held.enter_context((folder / "serve.lock").open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageFailed(f"Another autotune serve uses {folder}.", advice) from error
        if engine.dialect.name == "postgresql":
            with _reporting(engine):
                connection = held.enter_context(engine.connect().execution_options(isolation_level="AUTOCOMMIT"))
                connection.detach()  # closed at the end, not given to others together with its lock
                is_held = connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_SERVER)))
            if not is_held:
                raise StorageFailed(f"Another autotune serve uses the database {engine.url}.", advice)
        yield
