"""What trackers hold of a study, offline: rows, the answer, no secret; and that none can lose a search."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

import autotune
from autotune.report import trackers
from autotune.report.trackers import TRACKERS, Run, Trackers, answer_of, without_secrets
from autotune.space.search_space import SearchSpace
from autotune.study.database import database_of
from tests import makers
from tests.hurry import RECORDED_HOST, hurry

pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),  # tensorboard
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),  # mlflow's models
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),  # mlflow's store
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECRET = "wandb-offline-secret-0123456789"


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, nothing outside the test's folder, and a secret in the environment that none may log."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb-cache"),
        "WANDB_DATA_DIR": str(tmp_path / "wandb-data"),
        "WANDB_CONFIG_DIR": str(tmp_path / "wandb-config"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_TOKEN": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)


class Noting:
    """A tracker that notes what it is called with."""

    def __init__(self, run: Run) -> None:
        self.run = run
        CALLS.append(("start", run.id))

    def __call__(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        CALLS.append(("trial", trial.number))

    def close(self, answer: dict[str, Any]) -> None:
        CALLS.append(("answer", answer["headline"]))


CALLS: list[tuple[str, Any]] = []


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    monkeypatch.setattr(trackers, "TRACKERS", {**TRACKERS, "noting": Noting})
    CALLS.clear()
    yield CALLS
    CALLS.clear()


def told(folder: Path, *names: str) -> Trackers:
    """A finished study of three trials, logged by these trackers."""
    study = makers.result()
    folder.mkdir(exist_ok=True)
    group = Trackers(names, folder)
    group.close(database_of(folder, study.trials, study.request.objective).study, answer_of(study))
    return group


def test_a_trial_is_logged_once_in_one_run_however_often_the_study_is(
    tmp_path: Path, calls: list[tuple[str, Any]]
) -> None:
    told(tmp_path / "study", "noting")
    told(tmp_path / "study", "noting")
    runs = {run for what, run in calls if what == "start"}
    assert len(runs) == 1
    assert [number for what, number in calls if what == "trial"] == [0, 1, 2]
    assert [text.partition(" ")[0] for what, text in calls if what == "answer"] == ["4.00x"] * 2


def test_a_tracker_that_fails_is_told_of_once_without_secrets_and_dropped(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(tracker: Noting, study: object, trial: optuna.trial.FrozenTrial) -> None:
        if trial.number:
            raise SystemExit("no answer from https://ann:pass@host/x")

    monkeypatch.setattr(Noting, "__call__", fails)
    group = told(tmp_path / "study", "noting")
    assert [note.text for note in group.problems] == [
        "the logger noting (SystemExit) was given up; the search itself is not affected"
    ]
    assert capsys.readouterr().err.count("no answer from https://…@host/x") == 1
    assert [what for what, _ in calls] == ["start"]


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "PATIENCE_S", 0.2)
    monkeypatch.setattr(Noting, "__call__", lambda *_: time.sleep(60))
    assert [note.text.partition(" was")[0] for note in told(tmp_path / "study", "noting").problems] == [
        "the logger noting (no answer in 0 s)"
    ]
    assert [what for what, _ in calls] == ["start"]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://ann:pass@host/x refused", "https://…@host/x refused"),
        ("sqlite:////home/ann/mlflow.db is locked", "sqlite:…/mlflow.db is locked"),
        ("two\nlines", "two lines"),
    ],
)
def test_no_password_or_folder_of_an_error_is_shown(text: str, clean: str) -> None:
    assert without_secrets(text) == clean


def test_a_search_is_logged_as_it_runs_and_goes_on_in_the_same_run(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    monkeypatch.setitem(TRACKERS, "tensorboard", Noting)  # type: ignore[index]
    seen: list[list[int]] = []
    options = {
        "probes": RECORDED_HOST,
        "device": "cpu",
        "sequence_length": 16,
        "only": {"micro_batch_size": (2, 4), "checkpointing": ("none",), "optimizer": ("adamw_torch_fused",)},
        "space": "quick",
        "args": {"report_to": ["tensorboard", "wandb"]},
        "output_dir": str(tmp_path / "reports"),
        "study_name": "told",
        "report_to": "tensorboard",
        "watch": lambda progress: seen.append([number for what, number in calls if what == "trial"]),
    }
    monkeypatch.setattr(trackers, "TRACKERS", {"tensorboard": Noting})
    autotune.search("bert-mini", 8, n_trials=1, **options)
    result = autotune.search("bert-mini", 8, n_trials=2, **options)
    assert len(result.trials) == 2
    assert [number for what, number in calls if what == "trial"] == [0, 1]
    assert [0] in seen
    assert len({run for what, run in calls if what == "start"}) == 1
    assert result.setup.training_arguments["report_to"] == ["tensorboard", "wandb"]


def test_what_is_measured_again_is_not_logged_again(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    study, folder = makers.result(), tmp_path / "study"
    folder.mkdir()
    database = database_of(folder, study.trials, study.request.objective)
    group = Trackers(["noting"], folder)
    group.log(database.study)
    shorter = [replace(trial, confirmations=()) for trial in study.trials]
    baseline = shorter[0].configuration
    values = {name: tuple({trial.configuration.values[name]: None for trial in shorter}) for name in baseline.values}
    database.update(SearchSpace("study", baseline.global_batch_size, values, baseline), shorter, {})
    group.log(database.study)
    assert [number for what, number in calls if what == "trial"] == [0, 1, 2]


def test_ctrl_c_while_a_tracker_starts_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Trackers, "_start", interrupted)
    options = {"device": "cpu", "sampler": "random", "no_history": True, "probes": RECORDED_HOST}
    with pytest.raises(KeyboardInterrupt):
        autotune.search(
            "bert-mini", 8, output_dir=str(tmp_path), study_name="stopped", report_to="tensorboard", **options
        )
    left = autotune.TuningResult.load(tmp_path / "stopped")
    assert (left.stop_reason, left.complete, len(left.trials)) == ("interrupted by the user", False, 0)


# Each tracker's own ---------------------------------------------------------------------------------------------


def holds(folder: Path, text: str) -> list[str]:
    """Files below the folder in which this text stands."""
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [str(path) for path in files if not path.is_symlink() and text.encode() in path.read_bytes()]


def test_tensorboard_has_a_row_of_the_hparams_table_a_trial(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert not told(tmp_path / "study", "tensorboard").problems
    rows = sorted((tmp_path / "study" / "tensorboard").glob("trial-*"))
    assert [row.name for row in rows] == ["trial-0000", "trial-0001", "trial-0002"]
    events = EventAccumulator(str(rows[1]))
    events.Reload()
    (scalar,) = events.Scalars("objective")
    assert (scalar.step, scalar.value) == (1, float(makers.result().trials[1].samples_per_second))
    assert any("_hparams_" in tag for tag in events.Tags()["tensors"] or events.summary_metadata)


@pytest.mark.nightly
def test_mlflow_has_a_metric_s_step_a_trial_and_the_answer_as_tags(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    assert not told(tmp_path / "study", "mlflow").problems
    assert not told(tmp_path / "study", "mlflow").problems
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("autotune").experiment_id])
    history = client.get_metric_history(run.info.run_id, "objective")
    assert sorted((item.step, item.value) for item in history)[:2] == [
        (trial.number, float(trial.samples_per_second)) for trial in makers.result().trials[:2]
    ]
    assert run.data.tags["headline"].startswith("4.00x")
    assert run.info.status == "FINISHED"
    assert holds(tmp_path, SECRET) == []


def test_wandb_has_a_row_a_trial_in_a_run_of_its_own_and_nothing_of_the_machine(tmp_path: Path) -> None:
    import wandb

    mine = wandb.init(project="mine", settings=wandb.Settings(silent=True))
    try:
        assert not told(tmp_path / "study", "wandb").problems
        assert wandb.run is mine, "the caller's run is left as it is"
    finally:
        mine.finish()
        wandb.teardown()
    (log,) = [path for path in tmp_path.glob("wandb/offline-run-*/*.wandb") if mine.id not in path.name]
    content = log.read_bytes()
    for trial in makers.result().trials[:2]:
        assert f"{float(trial.samples_per_second):g}".encode() in content
    assert b"micro_batch_size" in content
    assert b"4.00x" in content
    assert os.uname().nodename.encode() not in content
    assert SECRET.encode() not in content
