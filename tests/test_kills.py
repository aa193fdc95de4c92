"""Searches whose processes are killed at random moments lose nothing, repeat nothing and leave nothing."""

from pathlib import Path

import pytest

from benchmarks.kills import Kill, compare, kill_searches, measured, table


@pytest.mark.nightly
def test_killed_searches_go_on_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    kills = kill_searches(20, tmp_path, seed=20, log=False)
    assert len(kills) == 20
    assert [kill for kill in kills if not kill.clean] == []


def test_what_is_lost_changed_or_ordered_again_is_counted(tmp_path: Path) -> None:
    for name in ("gone", "changed", "again", "same"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "order.json").write_text("{}")
        (tmp_path / name / "measurement.json").write_text('{"outcome": "completed"}')
    known, kill = measured(tmp_path), Kill("child", "probes")
    compare(tmp_path, known, [kill])
    assert kill.clean
    (tmp_path / "gone" / "measurement.json").unlink()
    (tmp_path / "changed" / "measurement.json").write_text('{"outcome": "crashed"}')
    (tmp_path / "again" / "order.json").touch()
    compare(tmp_path, known, [kill])
    assert kill.lost == {"gone/measurement.json", "changed/measurement.json"}
    assert kill.repeated == {"again/measurement.json"}
    assert not kill.clean
    assert table([kill, Kill("search", "start-up", 1.5)])[2:] == [
        "| child | probes | 1 | 1 | 2 | 1 | 0 | 0.00 |",
        "| search | start-up | 1 | 1 | 0 | 0 | 0 | 1.50 |",
        "| all |  | 2 | 2 | 2 | 1 | 0 | 1.50 |",
    ]
