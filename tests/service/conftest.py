"""Databases for the service's tests: each test runs on SQLite and on a real PostgreSQL."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from urllib.parse import quote

import pytest

pytest.importorskip("sqlalchemy", reason="the service is not installed (of the extra service)")

from sqlalchemy import Engine, create_engine, text

from autotune.service.tables import open_database

_NUMBERS = count()


def _program(name: str) -> str | None:
    return shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)


def _run(*words: str, folder: Path) -> None:
    """Run this as a user who may run PostgreSQL: root may not."""
    user = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
    subprocess.run([*user, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=120)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server without databases of its own; `{}` is in place of the database's name."""
    initdb, pg_ctl = _program("initdb"), _program("pg_ctl")
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is not installed (initdb)")
    folder = Path(
        tempfile.mkdtemp(prefix="tests-postgresql-")
    )  # a short path: that of a socket has at most 107 letters
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data = str(folder / "data")
    try:
        _run(initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", folder=folder)
        options = f"-k '{folder}' -c listen_addresses='' -c fsync=off"
        _run(pg_ctl, "-D", data, "-o", options, "-l", str(folder / "log"), "-w", "start", folder=folder)
        try:
            yield f"postgresql://postgres@/{{}}?host={quote(str(folder))}"
        finally:
            _run(pg_ctl, "-D", data, "-m", "immediate", "-w", "stop", folder=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of SQLite with the service's tables: making them takes longer than most tests."""
    place = tmp_path_factory.mktemp("migrated") / "autotune.db"
    open_database(f"sqlite:///{place}").dispose()
    return place


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)])
def database_url(request: pytest.FixtureRequest, migrated: Path, tmp_path: Path) -> Iterator[str]:
    """URL of a database without rows, of either kind; one of SQLite has its tables already."""
    if request.param == "sqlite":
        place = tmp_path / "state" / "autotune.db"
        place.parent.mkdir(mode=0o700)
        shutil.copyfile(migrated, place)
        yield f"sqlite:///{place}"
        return
    server = request.getfixturevalue("postgresql")
    name = f"test_{next(_NUMBERS)}"
    address = server.format("postgres").replace("postgresql:", "postgresql+psycopg:")
    administrator = create_engine(address, isolation_level="AUTOCOMMIT")
    with administrator.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield server.format(name)
    with administrator.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    administrator.dispose()


@pytest.fixture
def open_engine(database_url: str) -> Iterator[Callable[[], Engine]]:
    """Opens the test's database; as another process would, where it is called again."""
    engines: list[Engine] = []

    def open_engine() -> Engine:
        engines.append(open_database(database_url))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(open_engine: Callable[[], Engine]) -> Engine:
    """A database with the service's tables and nothing in them."""
    return open_engine()
