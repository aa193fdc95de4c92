"""What is in the offline runs that `wandb sync` uploads."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.report.table import frame
from tests.report.loggers.studies import SECRET, begun, holds, result, told

BLOCK = 32768
"""Bytes of a block of wandb's log, which is LevelDB's: records do not lie across two."""


@pytest.fixture(autouse=True)
def a_process_of_its_own() -> Iterator[None]:
    """wandb reads its variables once a process, and keeps one service for it."""
    import wandb

    yield
    wandb.teardown()


def runs(folder: Path) -> list[Path]:
    """Folders of the offline runs, whole: wandb writes them in a process of its own, whose end is awaited."""
    import wandb

    wandb.teardown()
    return sorted(folder.glob("wandb/offline-run-*"))


def records(run: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

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
    values: dict[str, Any] = {}
    for record in records(run):
        values |= items(record.summary.update)
    return values


def test_a_run_holds_the_rows_the_answer_the_report_and_nothing_of_the_machine(tmp_path: Path) -> None:
    study = result("wandb")
    told(study, tmp_path / "study")
    (run,) = runs(tmp_path)
    rows = history(run)
    outcomes = ["completed", "completed", "out_of_memory"]
    assert [(row["_step"], row["trial"], row["outcome"]) for row in rows] == [(n, n, o) for n, o in enumerate(outcomes)]
    for row, trial in zip(rows[:2], study.trials[:2], strict=True):
        assert row["samples_per_second"] == float(trial.measurement.samples_per_second)
        assert row["samples_per_second_low"] == trial.measurement.samples_per_second.low
        assert row["peak_bytes"] == trial.peak_bytes
        assert row["configuration/precision"] == dict(trial.configuration.settings)["precision"]
    assert "samples_per_second" not in rows[2]
    assert rows[2]["fastest_samples_per_second"] == rows[1]["samples_per_second"]

    answer = summary(run)
    speedup = [answer[f"answer/speedup{end}"] for end in ("", "_low", "_high")]
    assert speedup == [float(study.speedup), study.speedup.low, study.speedup.high]
    assert answer["answer/statement"] == study.stop_reason
    assert answer["answer/configuration/micro_batch_size"] == study.best.configuration.micro_batch_size
    table, expected = json.loads((run / "files" / answer["trials"]["path"]).read_text()), frame(study.trials)
    assert table["columns"] == list(expected.columns)
    speeds = [row[table["columns"].index("samples_per_second")] for row in table["data"]]
    assert speeds == [*expected["samples_per_second"].tolist()[:2], None]

    begin = next(record.run for record in records(run) if record.WhichOneof("record_type") == "run")
    assert (begin.project, begin.display_name) == ("autotune", "study")
    assert items(begin.config.update)["global_batch_size"] == 48
    artifact = next(record.artifact for record in records(run) if record.artifact.type == "report")
    names = {entry.path for entry in artifact.manifest.contents}
    assert names >= {"summary.md", "trials.csv", "best_training_arguments.json"}

    assert holds(tmp_path, SECRET) == []
    assert {path.name for path in (run / "files").iterdir()} == {"media"}
    assert begin.host != socket.gethostname()
    assert not begin.HasField("git")
    kinds = {record.WhichOneof("record_type") for record in records(run)}
    assert not kinds & {"stats", "environment", "output", "output_raw", "tbrecord"}


def test_a_resumed_study_resumes_its_run(tmp_path: Path) -> None:
    import wandb

    study = result("wandb")
    begun(study, tmp_path / "study").log(study.trials[:2])
    wandb.teardown()  # the search was killed
    told(study, tmp_path / "study", already=2)
    parts = runs(tmp_path)
    assert len(parts) == 2
    ids = {record.run.run_id for run in parts for record in records(run) if record.WhichOneof("record_type") == "run"}
    assert len(ids) == 1
    steps = sorted(row["_step"] for run in parts for row in history(run))
    assert steps == [0, 1, 2]


def test_the_caller_s_own_wandb_speaks_as_before(tmp_path: Path) -> None:
    import wandb

    wandb.setup(wandb.Settings(silent=False))
    told(result("wandb"), tmp_path / "study")
    assert not wandb.setup().settings.silent
    assert not wandb.errors.term._silent
