"""What MLflow's own client reads of what it was told, from a store of SQLite and one of files."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autotune.report.table import frame
from tests.report.loggers.studies import SECRET, holds, result, told

pytestmark = [
    pytest.mark.filterwarnings(reason)
    for reason in (
        "ignore:The ``noload`` loader strategy is deprecated",  # mlflow's models under SQLAlchemy 2.1
        "ignore:unclosed database:ResourceWarning",  # mlflow leaves its store's connections to the collector
        "ignore::pytest.PytestUnraisableExceptionWarning",  # and so they are reported
    )
]


@pytest.fixture(params=["sqlite:///{}/mlflow.db", pytest.param("file:{}/mlruns", marks=pytest.mark.nightly)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stores that need no server; MLflow takes the one of files only where it is asked to."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", request.param.format(tmp_path))


def client() -> Any:
    """MLflow's own, which takes a second to import."""
    from mlflow import MlflowClient

    return MlflowClient()


def only_run() -> Any:
    experiment = client().get_experiment_by_name("autotune")
    assert experiment is not None
    (run,) = client().search_runs([experiment.experiment_id])
    return run


def history(run: Any, name: str) -> list[tuple[int, float]]:
    return sorted((item.step, item.value) for item in client().get_metric_history(run.info.run_id, name))


@pytest.mark.usefixtures("store")
def test_metrics_parameters_tags_and_files_are_the_result_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("mlflow"), "level", logging.INFO)
    study = result("mlflow")
    told(study, tmp_path / "study")
    assert logging.getLogger("mlflow").level == logging.INFO, "the caller's own"
    assert holds(tmp_path, SECRET) == []
    run = only_run()
    speeds = [float(trial.measurement.samples_per_second) for trial in study.trials[:2]]
    assert history(run, "samples_per_second") == list(enumerate(speeds))
    assert history(run, "peak_bytes") == [(trial.number, trial.peak_bytes) for trial in study.trials[:2]]
    assert history(run, "fits") == [(0, 1), (1, 1), (2, 0)]
    assert run.data.metrics["answer/speedup"] == float(study.speedup)
    assert run.data.metrics["answer/speedup_low"] == study.speedup.low
    assert run.data.params["global_batch_size"] == "48"
    assert run.data.tags["answer.statement"] == study.stop_reason
    assert run.data.tags["answer.configuration.precision"] == "bf16"
    assert (run.info.run_name, run.info.status) == ("study", "FINISHED")
    names = {entry.path for entry in client().list_artifacts(run.info.run_id)}
    assert names >= {"summary.md", "trials.csv", "best_training_arguments.json"}
    table = pd.read_csv(client().download_artifacts(run.info.run_id, "trials.csv"))
    assert table["samples_per_second"].tolist()[:2] == frame(study.trials)["samples_per_second"].tolist()[:2]


def test_a_resumed_study_resumes_its_run_even_with_another_answer(tmp_path: Path) -> None:
    study = result("mlflow")
    first = replace(study, trials=study.trials[:1], complete=False)
    told(first, tmp_path / "study")
    assert only_run().info.status == "KILLED"
    told(study, tmp_path / "study", already=1)
    run = only_run()
    assert run.info.status == "FINISHED"
    assert [step for step, _ in history(run, "fits")] == [0, 1, 2]
    assert run.data.tags["answer.configuration.precision"] == "bf16"


def test_a_run_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    study = result("mlflow")
    told(study, tmp_path / "study")
    first = only_run()
    client().delete_run(first.info.run_id)
    told(study, tmp_path / "study", already=3)
    again = only_run()
    assert again.info.run_id != first.info.run_id
    assert [step for step, _ in history(again, "fits")] == [0, 1, 2]
