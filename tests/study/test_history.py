"""Past studies are found again by device and by what was asked; nothing of them can stop a search."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Interval
from autotune.core.real_run import RealRun
from autotune.sampler.calibration import KNOWN, Calibration
from autotune.sampler.prior import Learned
from autotune.space.settings import CostChange
from autotune.study.history import MOST_RUNS, Remembered, recall, remember, remember_run
from tests.makers import configuration, cpu, trial

HERE = cpu()
TAUGHT = Calibration({"precision": {"fp32": KNOWN, "bf16": Learned(CostChange(-0.5), CostChange(0.1, 0.2, 3.0))}}, 5.0)
TRIALS = [trial(0, 10.0, confirmed=11.0), trial(1, 20.0, of=configuration(16))]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_same_request_finds_its_trials_with_their_confirmations() -> None:
    remember(HERE, {"model": "a"}, TRIALS, TAUGHT)
    known = recall(HERE, {"model": "a"})
    assert [one.measurement for one in known.trials] == [item.measurement for item in TRIALS]
    assert known.trials[0].confirmations == TRIALS[0].confirmations
    assert known.others == (), "its own lessons are in its trials"


RUN = RealRun.of(
    Interval(10.0, 9.8, 10.2),
    Interval(9.0, 8.9, 9.1),
    **{"overall": 8.0, "steps": 90, "seconds": 80.0, "data_wait_share": 0.0, "outside_share": 0.1},
)


def test_real_runs_are_kept_apart_and_found_by_every_study_of_the_device() -> None:
    remember_run(HERE, {"model": "a"}, RUN)
    remember_run(HERE, {"model": "a"}, replace(RUN, measured=9.9))
    remember(HERE, {"model": "a"}, TRIALS, TAUGHT)
    known = recall(HERE, {"model": "b"})
    assert (known.trials, known.others) == ((), (TAUGHT,)), "what was taught, and no trials"
    assert [run.measured for run in known.real_runs] == [9.0, 9.9]
    assert [*map(str, known.notes)] == ["earlier promises on this device: 2 real trainings ran at 90% to 99% of them"]
    assert recall(cpu(versions={"torch": "9.0"}), {"model": "a"}) == Remembered(), "other software"


def test_the_last_real_runs_of_a_study_are_kept() -> None:
    for steps in range(MOST_RUNS + 3):
        remember_run(HERE, {"model": "a"}, replace(RUN, steps=steps))
    assert [run.steps for run in recall(HERE, {}).real_runs] == [*range(3, MOST_RUNS + 3)]


def test_what_is_damaged_counts_as_nothing(tmp_path: Path) -> None:
    remember(HERE, {"model": "a"}, TRIALS, TAUGHT)
    remember_run(HERE, {"model": "a"}, RUN)
    for path in tmp_path.rglob("*.json"):
        path.write_text("{")
    assert recall(HERE, {"model": "a"}) == Remembered()


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    remember(HERE, {"model": "a"}, TRIALS, TAUGHT)
    assert recall(HERE, {"model": "a"}) == Remembered()
