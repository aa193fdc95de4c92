"""What lies in the offline runs that `wandb sync` uploads."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from autotune.report.table import frame
from tests.report.loggers.studies import SECRET, begun, holds, result, told

BLOCK = 32768
"""Bytes of a block of wandb's log, which is LevelDB's: records do not lie across two."""


@pytest.fixture(autouse=True)
def a_process_of_its_own() -> Iterator[None]:
    """wandb reads its variables once a process, and keeps one service for it."""
    yield
    wandb.teardown()


def runs(folder: Path) -> list[Path]:
    """Folders of the offline runs, whole: wandb writes them in a process of its own, whose end is awaited."""
    wandb.teardown()
    return sorted(folder.glob("wandb/offline-run-*"))


def records(run: Path) -> Iterator[Record]:
    (log,) = run.glob("*.wandb")
    data, at, whole = log.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):  # a full record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def items(updates: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in updates}


def history(run: Path) -> list[dict[str, Any]]:
    return [items(record.history.item) for record in records(run) if record.WhichOneof("record_type") == "history"]


def summary(run: Path) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for record in records(run):
        said |= items(record.summary.update)
    return said


def test_the_history_has_a_row_a_trial_with_its_numbers_and_configuration(tmp_path: Path) -> None:
    made = result("wandb")
    told(made, tmp_path / "study")
    (run,) = runs(tmp_path)
    rows = history(run)
    assert [(row["_step"], row["trial"], row["outcome"]) for row in rows] == [
        (0, 0, "completed"),
        (1, 1, "completed"),
        (2, 2, "out_of_memory"),
    ]
    for row, trial in zip(rows[:2], made.trials[:2], strict=True):
        assert row["samples_per_second"] == float(trial.measurement.samples_per_second)
        assert row["samples_per_second_low"] == trial.measurement.samples_per_second.low
        assert row["peak_bytes"] == trial.peak_bytes
        assert row["configuration/precision"] == dict(trial.configuration.settings)["precision"]
    assert "samples_per_second" not in rows[2]
    assert rows[2]["best_samples_per_second"] == rows[1]["samples_per_second"]


def test_the_summary_has_the_answer_the_table_and_the_run_its_facts(tmp_path: Path) -> None:
    made = result("wandb")
    told(made, tmp_path / "study")
    (run,) = runs(tmp_path)
    said = summary(run)
    assert said["answer/speedup"] == float(made.speedup)
    assert (said["answer/speedup_low"], said["answer/speedup_high"]) == (made.speedup.low, made.speedup.high)
    assert said["answer/statement"] == made.stop_reason
    assert said["answer/configuration/micro_batch_size"] == made.best.configuration.micro_batch_size
    table = json.loads((run / "files" / said["trials"]["path"]).read_text())
    expected = frame(made.trials)
    assert table["columns"] == list(expected.columns)
    assert [row[0] for row in table["data"]] == [0, 1, 2]
    speed = table["columns"].index("samples_per_second")
    assert [row[speed] for row in table["data"]][:2] == expected["samples_per_second"].tolist()[:2]
    assert table["data"][2][speed] is None
    begun_with = next(record.run for record in records(run) if record.WhichOneof("record_type") == "run")
    assert (begun_with.project, begun_with.display_name) == ("autotune", "study")
    assert items(begun_with.config.update)["global_batch_size"] == 48


def test_the_report_s_files_are_an_artifact(tmp_path: Path) -> None:
    told(result("wandb"), tmp_path / "study")
    (run,) = runs(tmp_path)
    artifacts = [record.artifact for record in records(run) if record.artifact.type == "report"]
    names = {entry.path for entry in artifacts[0].manifest.contents}
    assert names >= {"summary.md", "trials.csv", "best_training_arguments.json"}


def test_a_resumed_study_goes_on_in_the_same_run(tmp_path: Path) -> None:
    made = result("wandb")
    begun(made, tmp_path / "study").log(made.trials[:2])
    wandb.teardown()  # the search was killed
    told(made, tmp_path / "study", already=2)
    parts = runs(tmp_path)
    assert len(parts) == 2
    named = {record.run.run_id for run in parts for record in records(run) if record.WhichOneof("record_type") == "run"}
    assert len(named) == 1
    steps = sorted(row["_step"] for run in parts for row in history(run))
    assert steps == [0, 1, 2]


def test_nothing_of_the_machine_or_its_environment_is_told(tmp_path: Path) -> None:
    told(result("wandb"), tmp_path / "study")
    (run,) = runs(tmp_path)
    assert holds(tmp_path, SECRET) == []
    assert {path.name for path in (run / "files").iterdir()} == {"media"}
    begun_with = next(record.run for record in records(run) if record.WhichOneof("record_type") == "run")
    assert begun_with.host != socket.gethostname()
    assert not begun_with.HasField("git")
    kinds = {record.WhichOneof("record_type") for record in records(run)}
    assert not kinds & {"stats", "environment", "output", "output_raw", "tbrecord"}


def test_the_caller_s_own_wandb_speaks_as_before(tmp_path: Path) -> None:
    wandb.setup(wandb.Settings(silent=False))
    told(result("wandb"), tmp_path / "study")
    assert not wandb.setup().settings.silent
    assert not wandb.errors.term._silent
