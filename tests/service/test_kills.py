"""A service whose parts are killed at random moments loses nothing, does nothing twice, hangs nowhere and leaves nothing."""

from pathlib import Path

import pytest

from tests.service.kills import kill_service
from tests.service.postgres import program

needs_postgres = pytest.mark.skipif(program("initdb") is None, reason="PostgreSQL is not installed (initdb)")


@pytest.mark.nightly
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=needs_postgres)])
def test_whatever_is_killed_nothing_is_lost_doubled_stuck_or_left(database: str, tmp_path: Path) -> None:
    counts = kill_service(20, database, tmp_path)
    assert counts.kills.total() >= 20
    assert counts.faults == []
    assert counts.repeated <= counts.kills.total()


@pytest.mark.nightly
@pytest.mark.slow
def test_real_probes_that_end_between_kills_are_measured_once(tmp_path: Path) -> None:
    counts = kill_service(4, "sqlite", tmp_path, victims={"server": 1, "runner": 1}, real=True)
    assert counts.faults == []
    assert counts.between >= 2
