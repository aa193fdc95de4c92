"""What TensorBoard itself reads of what it was told."""

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.util.tensor_util import make_ndarray

from autotune.report import formats
from autotune.report.table import frame
from tests.report.loggers.studies import SECRET, begun, holds, result, told

pytestmark = pytest.mark.filterwarnings(
    "ignore:distutils Version classes are deprecated:DeprecationWarning",  # tensorboard's own stub of TensorFlow
)


def read(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def scalars(events: EventAccumulator, tag: str) -> dict[int, float]:
    return {event.step: make_ndarray(event.tensor_proto).item() for event in events.Tensors(tag)}


def text(events: EventAccumulator, tag: str) -> str:
    return make_ndarray(events.Tensors(tag)[-1].tensor_proto).item().decode()


def test_scalars_texts_and_hparams_are_the_study_s(tmp_path: Path) -> None:
    study = result("tensorboard")
    told(study, tmp_path / "study")
    folder = tmp_path / "study" / "tensorboard"
    events = read(folder)
    probed = frame([replace(trial, confirmations=()) for trial in study.trials])
    speeds = dict(zip(probed["number"], probed["samples_per_second"], strict=True))
    assert scalars(events, "samples_per_second") == {0: speeds[0], 1: speeds[1]}
    assert scalars(events, "peak_bytes") == {trial.number: trial.peak_bytes for trial in study.trials[:2]}
    assert scalars(events, "fits") == {0: 1, 1: 1, 2: 0}
    assert scalars(events, "speedup_so_far")[2] == pytest.approx(4.0)
    assert scalars(events, "untried_could_win") == {0: 0.5, 1: 0.25, 2: 0.5 / 3}
    assert scalars(events, "answer/speedup") == {3: float(study.speedup)}

    assert re.search(r"^\| global_batch_size +\| 48 +\|$", text(events, "study"), re.MULTILINE)
    assert study.stop_reason in text(events, "answer")
    best = re.escape(str(study.best.configuration))
    assert re.search(rf"^\| best +\| {best} +\|$", text(events, "answer"), re.MULTILINE)
    assert text(events, "trials") == formats.formatted(frame(study.trials), "markdown")

    for trial in study.trials:
        own = read(folder / f"trial-{trial.number:04d}")
        content = own.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
        session = hparams.parse_session_start_info_plugin_data(content)
        values = {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}
        assert values["precision"] == dict(trial.configuration.settings)["precision"]
        assert values["micro_batch_size"] == trial.configuration.micro_batch_size
        assert values["pin_memory"] is False
    content = events.SummaryMetadata(hparams.EXPERIMENT_TAG).plugin_data.content
    columns = [info.name.tag for info in hparams.parse_experiment_plugin_data(content).metric_infos]
    assert columns == ["samples_per_second", "peak_bytes", "probe_seconds"]

    assert holds(tmp_path, SECRET) == []
    names = [path.name for path in folder.rglob("events*")]
    assert len(names) == 4
    assert not [name for name in names if socket.gethostname() in name.split(".")]


def test_a_resumed_study_resumes_its_run_and_logs_a_trial_once(tmp_path: Path) -> None:
    study = result("tensorboard")
    begun(study, tmp_path / "study").log(study.trials[:2])
    told(study, tmp_path / "study", already=2)
    events = read(tmp_path / "study" / "tensorboard")
    assert [event.step for event in events.Tensors("fits")] == [0, 1, 2]
    assert len(events.Tensors("study")) == 1


@pytest.mark.nightly
def test_logging_loads_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    program = f"""
import sys, warnings
from pathlib import Path
from tests.report.loggers.studies import result, told
told(result("tensorboard", "wandb", "mlflow"), Path({str(tmp_path / "study")!r}))
heavy = {{"torch", "transformers", "datasets", "bitsandbytes", "tensorflow"}}
assert {{"tensorboard", "wandb", "mlflow"}} <= set(sys.modules)
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    root = str(Path(__file__).parents[3])
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}, check=True, timeout=300
    )
