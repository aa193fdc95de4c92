"""What trackio's own storage reads of what it was told, on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.report.table import frame
from tests.report.loggers.studies import SECRET, holds, result, told

trackio = pytest.importorskip("trackio", reason="trackio is not installed: its pins are not ours")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # trackio's own storage


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trackio reads its folder's name once, when it is imported."""
    from trackio import sqlite_storage, utils

    for module in (trackio, utils, sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)


def logs() -> tuple[str, list[dict[str, Any]]]:
    """(name of the only run, what was logged)."""
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = trackio.Api().runs("autotune")
    return run.name, SQLiteStorage.get_logs("autotune", run.name)


def test_rows_answer_and_table_are_the_result_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = result("trackio")
    told(study, tmp_path / "study")
    name, logged = logs()
    assert name.startswith("study-")
    *rows, answer = logged
    assert [(row["step"], row["outcome"]) for row in rows] == [(0, "completed"), (1, "completed"), (2, "out_of_memory")]
    assert rows[0]["samples_per_second"] == float(study.trials[0].measurement.samples_per_second)
    assert rows[1]["configuration/precision"] == "bf16"
    assert rows[1]["peak_bytes"] == study.trials[1].peak_bytes
    assert answer["answer/speedup"] == float(study.speedup)
    assert answer["answer/statement"] == study.stop_reason
    table = answer["trials"]["_value"]
    assert [row["samples_per_second"] for row in table][:2] == frame(study.trials)["samples_per_second"].tolist()[:2]
    assert capsys.readouterr().out == ""
    assert holds(tmp_path, SECRET) == []


def test_a_resumed_study_goes_on_in_the_same_run(tmp_path: Path) -> None:
    study = result("trackio")
    told(replace(study, trials=study.trials[:2], complete=False), tmp_path / "study")
    told(study, tmp_path / "study", already=2)
    _, logged = logs()
    assert [row["step"] for row in logged if "fits" in row] == [0, 1, 2]
