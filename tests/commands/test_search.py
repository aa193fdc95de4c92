"""`search` from Python: whole studies from a recorded host, and with real probes where processes matter."""

import contextlib
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import autotune
from autotune.commands.result import TuningResult
from autotune.core.errors import NothingFits, StudyMismatch
from autotune.study.plan import Progress
from tests.hurry import RECORDED_HOST, hurried, hurry
from tests.makers import gpu

MINIMAL = {"device": "cpu", "sequence_length": 16}
DEFAULT = {"probes": RECORDED_HOST, "no_history": True, **MINIMAL}


@pytest.fixture(autouse=True)
def a_short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> TuningResult:
    folder = tmp_path_factory.mktemp("reports")
    return autotune.search("bert-mini", 16, n_trials=4, output_dir=str(folder), **DEFAULT)


def test_a_search_finds_an_exact_configuration_and_confirms_it(searched: TuningResult) -> None:
    for trial in searched.trials:
        assert trial.configuration.global_batch_size == 16
        if trial.measurement.feasible:
            assert trial.measurement.settings == trial.configuration.values
            assert {step.samples for step in trial.measurement.composed_steps} == {16}
    assert searched.best.confirmed
    assert searched.baseline.confirmed
    assert searched.baseline.number == 0
    assert searched.baseline.configuration.micro_batch_size == 8
    assert (
        searched.best.samples_per_second.low
        <= searched.best.samples_per_second
        <= searched.best.samples_per_second.high
    )
    assert searched.speedup is not None


def test_the_report_folder_is_complete_and_loads_back(searched: TuningResult) -> None:
    folder = searched.folder
    assert {path.name for path in folder.iterdir()} >= {
        "request.json",
        "environment.json",
        "trials.csv",
        "trials.parquet",
        "best_training_arguments.json",
        "best_model_arguments.json",
        "summary.md",
        "study.db",
        "probes",
    }
    for number in range(len(searched.trials)):
        names = {path.name for path in (folder / "probes" / f"{number:04d}").iterdir()}
        assert names >= {"order.json", "measurement.json"}
    loaded = TuningResult.load(folder)
    assert loaded.trials == list(searched.trials)
    assert loaded.best.number == searched.best.number
    assert loaded.speedup == searched.speedup
    assert sorted(loaded.prospects) == list(range(len(searched.trials)))
    assert set(range(len(searched.trials))) == set(loaded.estimated_peaks)
    assert loaded.estimated_peaks == searched.estimated_peaks
    assert loaded.forecast == searched.forecast
    assert searched.forecast is not None
    assert searched.forecast.took_s > 0
    assert searched.forecast.expected_s > 0, "of the recorded seconds, which a replay does not take"


def test_the_same_command_again_goes_on_and_probes_nothing_twice(searched: TuningResult, tmp_path: Path) -> None:
    shutil.copytree(searched.folder, tmp_path / searched.folder.name)
    kinds = []
    again = autotune.search(
        "bert-mini",
        16,
        n_trials=5,
        output_dir=str(tmp_path),
        sampler="tpe",  # uses all its trials, where ours had ended sooner
        watch=lambda progress: kinds.append((progress.kind, progress.number)),
        **DEFAULT,
    )
    assert [number for kind, number in kinds if kind == "probing"] == list(range(len(searched.trials), 5))
    assert list(again.trials[:4])[1].measurement == searched.trials[1].measurement


def test_the_same_name_with_another_question_is_refused_with_the_difference(searched: TuningResult) -> None:
    with pytest.raises(StudyMismatch, match=r"headroom was 0\.05, is now 0\.1"):
        autotune.search("bert-mini", 16, n_trials=4, output_dir=str(searched.folder.parent), headroom=0.1, **DEFAULT)


REPLAYED = {"probes": RECORDED_HOST, "no_history": True, "n_trials": 2, **MINIMAL}


ON_A_GPU = gpu(cpu_count=8, device_uuid="", device_uuids=())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, ["probe", "rates", "trace", "probe"]), (ON_A_GPU.to_dict(), ["probe", "rates", "probe"])],
)
def test_the_baseline_is_measured_first_and_on_a_gpu_beside_the_traces(
    environment: dict[str, Any], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kinds: list[str] = []
    with RECORDED_HOST() as host:
        host._recording["environment"] |= environment
        options = REPLAYED | {"probes": lambda objects: host}
        watch = lambda progress: kinds.append(progress.kind)  # noqa: E731
        autotune.search("bert-mini", 16, output_dir=tmp_path / "reports", watch=watch, **options)
    orders = [order.kind for order in host.orders]
    assert orders.index("trace") < orders.index("probe", orders.index("rates"))
    if environment:  # in another thread
        orders.remove("trace")
    assert orders[: 2 + len(expected)] == ["capabilities", "prepare", *expected]
    assert kinds[:6] == ["probing", "trial", "preparing", "preparing", "probing", "trial"]


def interrupted(progress: Progress) -> None:
    if progress.kind == "probing":
        raise KeyboardInterrupt


def test_a_study_that_measured_nothing_makes_way_for_another_question(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        autotune.search("bert-mini", 16, output_dir=tmp_path, watch=interrupted, **REPLAYED)
    (folder,) = tmp_path.iterdir()
    result = autotune.search("bert-mini", 16, output_dir=tmp_path, headroom=0.1, watch=False, **REPLAYED)
    assert result.folder == folder
    assert TuningResult.load(folder).request.headroom == 0.1
    assert [trial.number for trial in TuningResult.load(folder).trials] == [0, 1]
    with pytest.raises(StudyMismatch):
        autotune.search("bert-mini", 16, output_dir=tmp_path, headroom=0.2, watch=False, **REPLAYED)


def test_the_caller_s_random_numbers_are_as_if_nothing_had_been_searched(tmp_path: Path) -> None:
    random.seed(7)
    numpy.random.seed(7)
    before = random.getstate(), repr(numpy.random.get_state())
    for name in ("searched", "interrupted"):
        with contextlib.suppress(KeyboardInterrupt):
            watch = interrupted if name == "interrupted" else False
            autotune.search("bert-mini", 16, output_dir=tmp_path, study_name=name, watch=watch, **REPLAYED)
        assert (random.getstate(), repr(numpy.random.get_state())) == before


def test_a_limit_below_what_the_model_alone_needs_says_so_with_the_figure(tmp_path: Path) -> None:
    with pytest.raises(NothingFits, match=r"needs \d+ MiB for its weights and gradients alone"):
        autotune.search("bert-mini", 8, output_dir=str(tmp_path), memory_limit="20MiB", **DEFAULT)


OWN_MODULE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, number):
        return {"x": torch.ones(4) * number, "labels": torch.tensor(1.0)}
"""
OWN_SCRIPT = """
import runpy
import autotune
import transformers
parts = runpy.run_path("parts.py")
from wave import Data
def build(args):
    return transformers.Trainer(parts["Net"](), args, train_dataset=Data())
args = transformers.TrainingArguments("output", per_device_train_batch_size=4, use_cpu=True, report_to="none")
result = autotune.tune(build, args, n_trials=1, output_dir="reports",
    space="quick", only={"checkpointing": ["none"], "micro_batch_size": [2, 4], "precision": ["fp32"]})
print("FOUND", result.folder.name, result.best.configuration.global_batch_size)
"""


@pytest.mark.nightly
def test_a_script_brings_a_class_and_modules_that_a_probe_could_not_import(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(OWN_MODULE)
    (tmp_path / "wave.py").write_text(OWN_MODULE)  # so is a module of Python's own called
    (tmp_path / "train.py").write_text(OWN_SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"], text=True, capture_output=True, timeout=300, cwd=tmp_path, env=hurried()
    )
    assert done.stdout.strip() == "FOUND train-build-gb4-cpu 4", done.stderr
    assert re.search(r"^trial 0: .*samples/s", done.stderr, re.MULTILINE)


def test_a_cluster_may_have_more_devices_than_this_machine_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(Exception):
        """The study."""

    class Device:
        host = SimpleNamespace(time_limit=None)

    def begin(*_: object) -> None:
        raise Begun

    monkeypatch.setattr("autotune.commands.search._on_ray", lambda *_: contextlib.nullcontext([Device()] * 99))
    monkeypatch.setattr("autotune.commands.setup.open_setup", begin)
    with pytest.raises(Begun):
        autotune.search("bert-mini", 16, executor="ray", devices=99, cores_per_device=9, **MINIMAL)
