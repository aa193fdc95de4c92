"""The service's tables: created, migrated, and held by one server."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text

from autotune.core.errors import InvalidRequest, StorageFailed
from autotune.service import tables
from autotune.service.accounts import Accounts
from autotune.service.store import Store
from autotune.service.tables import (
    DatabaseAway,
    DatabaseTaken,
    ServerLock,
    connect_database,
    metadata,
    open_database,
    used_database,
    writing,
)
from tests.probe.processes import bounded


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        return compare_metadata(MigrationContext.configure(connection), metadata)


def test_the_migrations_make_the_tables_that_the_code_uses(engine: Engine) -> None:
    assert differences(engine) == []


def test_a_lock_that_another_one_holds_is_named_and_nobody_waits_for_it_for_long(
    engine: Engine, open_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LOCKED_S", 1)
    other = open_engine()
    with writing(engine), pytest.raises(DatabaseAway, match="locked for 1 s") as met, writing(other):
        pass
    assert "End what holds it" in met.value.advice
    with writing(other):
        """It is free again."""


def test_a_new_database_may_be_opened_by_several_at_once(open_engine: Callable[[], Engine]) -> None:
    with ThreadPoolExecutor(8) as pool:
        engines = list(pool.map(lambda _: open_engine(), range(8)))
    assert differences(engines[0]) == []


def test_a_database_of_a_newer_version_is_refused(engine: Engine, open_engine: Callable[[], Engine]) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageFailed, match=r"newer version of autotune.*Install that version"):
        open_engine()


@pytest.mark.parametrize(
    "url", ["", "autotune.db", "sqlite://", "sqlite:///:memory:", "mysql://host/autotune", "a://b:c"]
)
def test_a_url_of_no_usable_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"neither a file of SQLite nor a database of PostgreSQL.*sqlite:////"):
        open_database(url)


def test_an_old_sqlite_is_named_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of RHEL 9's Python, which takes `RETURNING` for an error of syntax."""
    monkeypatch.setattr(tables.sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(tables.sqlite3, "sqlite_version", "3.34.1")
    with pytest.raises(InvalidRequest, match=r"SQLite 3\.34\.1; the service needs 3\.35"):
        connect_database(f"sqlite:///{tmp_path}/state/service.db")
    assert [*tmp_path.iterdir()] == []


def test_a_server_out_of_reach_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be used") as refused:
        open_database(f"postgresql://anna:hidden@/autotune?host={tmp_path}")
    assert "hidden" not in str(refused.value)


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="file/state cannot be written"):
        open_database(f"sqlite:///{tmp_path}/file/state/autotune.db")


def test_a_state_folder_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    here = next(mounts[path] for path in tmp_path.resolve().parents if path in mounts)
    monkeypatch.setattr(tables, "NETWORK_FILE_SYSTEMS", {here})
    with pytest.raises(StorageFailed, match=rf"network file system \({here}\)"):
        open_database(f"sqlite:///{tmp_path}/autotune.db")
    assert not (tmp_path / "autotune.db").exists()


def test_what_sqlite_wrote_is_on_disk_when_it_is_acknowledged(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/autotune.db")
    with engine.connect() as connection:
        settings = {name: connection.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous")}
    assert settings == {"journal_mode": "wal", "synchronous": 2}  # 2: FULL
    engine.dispose()


def test_a_database_is_its_owners_alone_from_the_beginning_in_a_folder_of_all(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o755)
    before = os.umask(0o022)
    try:
        engine = open_database(f"sqlite:///{tmp_path}/all/autotune.db")
        with writing(engine):
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "all").iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "all").stat().st_mode) == 0o755
    engine.dispose()


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "autotune.db").write_bytes(b"no database " * 4096)
    with pytest.raises(StorageFailed, match=r"autotune\.db cannot be used: file is not a database\."):
        open_database(f"sqlite:///{tmp_path}/autotune.db")


def test_a_database_that_no_server_has_used_is_named_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"No autotune serve has used the database"):
        used_database(f"sqlite:///{tmp_path}/none/autotune.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "autotune.db").touch()
    with pytest.raises(InvalidRequest, match=r"No autotune serve has used the database"):
        used_database(f"sqlite:///{tmp_path}/autotune.db")


def test_a_database_of_another_version_is_left_as_it_is(database_url: str, engine: Engine) -> None:
    used_database(database_url).dispose()
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(InvalidRequest, match="another version"):
        used_database(database_url)


# One server a database ------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from autotune.service.tables import ServerLock, open_database
with ServerLock(open_database(sys.argv[1]), Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_server_of_a_database_is_refused_until_the_first_is_gone(
    database_url: str, open_engine: Callable[[], Engine], tmp_path: Path
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, database_url, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(tables.__file__).parents[2])},
    )
    with bounded(first):
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with (
            pytest.raises(StorageFailed, match="Another autotune serve uses"),
            ServerLock(open_engine(), tmp_path / "b"),
        ):
            pass
        first.kill()
    with ServerLock(open_engine(), tmp_path / "b"):
        pass


def test_a_second_server_of_a_state_folder_is_refused(engine: Engine, tmp_path: Path) -> None:
    other = open_database(f"sqlite:///{tmp_path}/other/autotune.db")
    with (
        ServerLock(engine, tmp_path / "state"),
        pytest.raises(StorageFailed, match="Another autotune serve uses"),
        ServerLock(other, tmp_path / "state"),
    ):
        pass
    other.dispose()


def cut_session(engine: Engine) -> None:
    """End the session of PostgreSQL that has the server's lock, as a restart, a failover or a firewall does."""
    holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = :key"
    with engine.connect() as connection:
        (pid,) = connection.scalars(text(holder), {"key": tables.SERVER})
        connection.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})


def lose(lock: ServerLock, engine: Engine) -> None:
    """Take away what the lock holds, without its noticing."""
    for path in lock._paths:
        path.unlink()
    if engine.dialect.name == "postgresql":
        cut_session(engine)


def test_a_lost_lock_is_taken_again(engine: Engine, open_engine: Callable[[], Engine], tmp_path: Path) -> None:
    with ServerLock(engine, tmp_path / "state") as lock:
        epoch = lock.epoch
        lose(lock, engine)
        lock.check()
        with (
            pytest.raises(DatabaseTaken, match="Another autotune serve uses"),
            ServerLock(open_engine(), tmp_path / "b"),
        ):
            pass
        lock.check()
        assert lock.epoch == epoch


def test_a_server_whose_lock_another_one_took_changes_nothing_any_more(
    engine: Engine, open_engine: Callable[[], Engine], tmp_path: Path
) -> None:
    with ServerLock(engine, tmp_path / "state") as lock:
        store = Store(engine, lock=lock)
        running, queued = (
            store.submit("anna", "first", {"model": "bert-mini", "device": device})[0].id for device in ("cpu", "cuda")
        )
        assert store.claim(["cpu"]) is not None
        lose(lock, engine)
        with ServerLock(open_engine(), tmp_path / "state") as other:
            assert other.epoch == lock.epoch + 1
            before = [store.read(search_id) for search_id in (running, queued)]
            event = {"key": "trial:0", "kind": "trial", "body": {"number": 0}}
            for write in (
                lambda: store.claim(["cpu"]),
                lambda: store.started(running, 1, 1, 1.0),
                lambda: store.stopped(running, 1),
                lambda: store.requeue(running, 1, "it was lost"),
                lambda: store.add_events(running, 1, [event]),
                lambda: store.end(running, 1, "done", artifacts={"a.md": b"1"}),
                lambda: store.fail_unserved({"cpu": ""}),
                lambda: store.forget(datetime.now(UTC)),
                lambda: store.begin_again(running, 1, 0),
                lambda: store.submit("anna", "second", {"model": "bert-mini"}),
                lambda: store.cancel(queued, now=False),
                lambda: Accounts(lock.engine).create("anna", "viewer", None, "a test"),
                lambda: Accounts(lock.engine).record(None, "token", "refused"),
                store.check_lock,
            ):
                with pytest.raises(DatabaseTaken):
                    write()
            assert [store.read(search_id) for search_id in (running, queued)] == before
            assert Store(engine, lock=other).requeue(running, 1, "it was lost").state == "queued"
            other.check()
        with pytest.raises(DatabaseTaken):  # the other one has gone, and may have changed anything
            lock.check()
