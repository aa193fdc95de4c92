"""Databases for the service's tests: each test runs on SQLite and on a real PostgreSQL. And replayed searches."""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="the service is not installed (of the extra service)")

from sqlalchemy import Engine, create_engine, text

from autotune.service.roots import Roots
from autotune.service.tables import open_database
from tests.service.application import CANARY, CONFIG
from tests.service.searches import Replaying

_NUMBERS = count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server without databases of its own; `{}` is in place of the database's name."""
    from tests.service.postgres import Postgres  # needs psycopg, of the extra postgres

    try:
        server = Postgres()
    except FileNotFoundError:
        pytest.skip("PostgreSQL is not installed (initdb)")
    with server:
        yield server.url.replace("/postgres?", "/{}?")


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


@pytest.fixture
def replaying(tmp_path: Path) -> Replaying:
    """For searches that are replayed."""
    return Replaying(tmp_path / "replaying")


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """Two roots with a model and data, and files beside them that nobody may read."""
    model = tmp_path / "models" / "bert"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models" / "small.json").write_text(json.dumps(CONFIG))
    (tmp_path / "models" / ".hidden").mkdir()
    (tmp_path / "models" / ".hidden" / "config.json").write_text(json.dumps(CONFIG))
    data = tmp_path / "data" / "texts"
    data.mkdir(parents=True)
    (data / "corpus.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "canary.json").write_text(json.dumps(CONFIG | {"name": CANARY}))
    (tmp_path / "canary.jsonl").write_text(json.dumps({"text": CANARY}))
    (tmp_path / "canary").mkdir()
    (tmp_path / "canary" / "config.json").write_text(json.dumps(CONFIG | {"name": CANARY}))
    return Roots({"team": tmp_path / "models"}, {"team": tmp_path / "data"})
