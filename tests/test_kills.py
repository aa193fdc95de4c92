"""Searches whose processes are killed at random moments lose nothing, repeat nothing and leave nothing."""

import random
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from autotune.commands.result import TuningResult
from benchmarks.kills import PHASES, Facts, Killer, kill_searches, last_order


@pytest.mark.nightly
def test_killed_searches_go_on_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    kills = kill_searches(20, tmp_path, seed=20, log=False)
    assert len(kills) == 20
    assert [kill for kill in kills if not kill.clean] == []


class KillerAt(Killer):
    """Kills the search itself, once, as soon as it is at this point."""

    def __init__(self, folder: Path, point: str) -> None:
        super().__init__(folder, random.Random(0), 0, log=False)
        self.point = point

    def _is_there(self, place: Path, begun: int) -> bool:
        if self.point == "report":  # result.json is its first file, report.html one of the last
            return (place / "result.json").exists() and not (place / "report.html").exists()
        part = next(part for part, phase in PHASES.items() if phase == self.point)
        return part in last_order(place, begun)

    def _kill_some(self, search: "subprocess.Popen[bytes]", place: Path, known: Facts) -> None:
        begun = time.time_ns()
        while search.poll() is None:
            if not self.kills and self._is_there(place, begun):
                process = psutil.Process(search.pid)
                self._kill(search, process, "search", last_order(place, begun), place, known)
            time.sleep(0.002)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["confirmation", "sanity_check", "report"])
def test_a_search_that_is_killed_in_a_round_a_check_or_its_report_goes_on_and_leaves_nothing(
    point: str, tmp_path: Path
) -> None:
    killer = KillerAt(tmp_path, point)
    killer.finish_study("killed", 0)
    (kill,) = killer.kills
    assert kill.victim == "search"
    assert kill.clean, kill
    assert point in (kill.phase, "report")
    result = TuningResult.load(tmp_path / "reports" / "killed")
    assert result.complete
    assert result.finished
    assert (tmp_path / "reports" / "killed" / "report.html").exists()
