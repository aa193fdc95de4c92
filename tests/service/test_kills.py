"""A service whose parts are killed at random moments loses nothing, does nothing twice, hangs nowhere and leaves nothing."""

from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete

from autotune.service.records import DONE
from autotune.service.store import Store
from autotune.service.tables import artifacts, events, writing
from tests.service.dispatching import dispatcher_of, dispatching, ended, faults
from tests.service.kills import Counts, kill_service, table
from tests.service.postgres import program
from tests.service.searches import REQUEST, Replaying, study_of

needs_postgres = pytest.mark.skipif(program("initdb") is None, reason="PostgreSQL is not installed (initdb)")


@pytest.mark.nightly
def test_a_server_that_is_killed_at_any_moment_ends_everything_once(tmp_path: Path) -> None:
    counts = kill_service(3, "sqlite", tmp_path, seed=1, victims={"server": 1})
    assert counts.kills["server"] >= 3
    assert counts.faults == []
    assert counts.searches >= 3


@pytest.mark.nightly
@pytest.mark.parametrize("count", [20])
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
def test_whatever_is_killed_nothing_is_lost_doubled_stuck_or_left(count: int, database: str, tmp_path: Path) -> None:
    counts = kill_service(count, database, tmp_path)
    assert counts.kills.total() >= count
    assert counts.faults == []
    assert counts.repeated <= counts.kills.total()


@pytest.mark.nightly
@needs_postgres
def test_a_server_whose_connections_are_cut_at_any_moment_loses_and_doubles_nothing(tmp_path: Path) -> None:
    counts = kill_service(8, "postgres", tmp_path, seed=2, victims={"connections": 1})
    assert counts.kills == {"connections": 8}
    assert counts.faults == []


@pytest.mark.nightly
@pytest.mark.slow
def test_real_probes_that_end_between_kills_are_measured_once(tmp_path: Path) -> None:
    counts = kill_service(4, "sqlite", tmp_path, victims={"server": 1, "runner": 1}, real=True)
    assert counts.faults == []
    assert counts.between >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_lost_or_doubled_is_found(engine: Engine, tmp_path: Path) -> None:
    store, state, replaying = Store(engine), tmp_path / "state", Replaying(tmp_path / "replaying")
    search_id = store.submit("anna", "a search", {**REQUEST, "n_trials": 2})[0].id
    with dispatching(dispatcher_of(store, state, replaying)):
        search = ended(store, search_id)
    study = study_of(state, search_id)
    assert search.state == DONE
    assert faults(store, state, search) == []

    (study / "summary.md").write_text("another one")
    assert faults(store, state, search) == ["lost: content of ['summary.md']"]
    (study / "summary.md").write_bytes((store.artifact(search_id, "summary.md") or (None, b""))[1])
    with writing(engine) as connection:
        connection.execute(delete(artifacts).where(artifacts.c.name == "report.html"))
    assert [fault.partition(" of ")[0] for fault in faults(store, state, search)] == ["lost: files"]
    with writing(engine) as connection:
        connection.execute(delete(events).where(events.c.key == "trial:1"))
    found = [fault.partition(" of ")[0] for fault in faults(store, state, search)]
    assert found == ["lost: events have gaps", "lost: events ['trial:1']", "lost: files"]
    (study / "probes" / "0000" / "measurement.json").unlink()
    assert [fault.partition(":")[0] for fault in faults(store, state, search)] == ["lost"]


def test_the_table_counts_kills_and_what_came_of_them() -> None:
    counts = Counts(Counter({"server": 2, "child": 1}), seconds={"server": 2.5}, searches=4, measured=40, repeated=1)
    assert table(counts)[2:5] == ["| child | 1 | 0.00 |", "| server | 2 | 2.50 |", "| all | 3 | 2.50 |"]
    assert table(counts)[-1] == "| 4 | 40 | 0 | 0 | 0 | 0 | 1 | 0 |"
    assert counts.faults == []
