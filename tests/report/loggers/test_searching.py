"""A search with a logger, resumed in the same run."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import autotune
from autotune.report.loggers.guarded import LoggerGroup
from tests.hurry import RECORDED_HOST, hurry

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:distutils Version classes are deprecated:DeprecationWarning",  # tensorboard's own stub of TensorFlow
    ),
]


def test_a_search_is_told_and_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
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
    }
    autotune.search("bert-mini", 8, n_trials=1, **options)
    result = autotune.search("bert-mini", 8, n_trials=2, **options)
    assert len(result.trials) == 2
    folder = tmp_path / "reports" / "told" / "tensorboard"
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    speeds = {event.step: make_ndarray(event.tensor_proto).item() for event in events.Tensors("samples_per_second")}
    measured = {trial.number: float(trial.measurement.samples_per_second) for trial in result.trials}
    assert speeds == measured
    assert len(events.Tensors("samples_per_second")) == 2
    assert make_ndarray(events.Tensors("answer/speedup")[-1].tensor_proto).item() == float(result.speedup)
    assert "untried_could_win" in events.Tags()["tensors"]
    assert result.setup.training_arguments["report_to"] == ["tensorboard", "wandb"]
    elsewhere = [path for path in tmp_path.rglob("events.out*") if folder not in path.parents]
    assert elsewhere == []
    assert not list(tmp_path.rglob("wandb"))


def test_ctrl_c_while_a_logger_starts_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LoggerGroup, "start", interrupted)
    options = {"device": "cpu", "sampler": "random", "no_history": True, "probes": RECORDED_HOST}
    with pytest.raises(KeyboardInterrupt):
        autotune.search(
            "bert-mini", 8, output_dir=str(tmp_path), study_name="stopped", report_to="tensorboard", **options
        )
    left = autotune.TuningResult.load(tmp_path / "stopped")
    assert (left.stop_reason, left.complete, len(left.trials)) == ("interrupted by the user", False, 0)
