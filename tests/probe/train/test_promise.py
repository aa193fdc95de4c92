"""A real training is compared with what was promised: told, kept in the study, and warned of with its reason."""

import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import autotune
from autotune.commands.result import TuningResult
from autotune.commands.studies import studies, studies_lines
from autotune.core import Interval, read_json
from autotune.core.paths import cache_folder
from autotune.core.real_run import RealRun
from autotune.core.units import three_digits
from autotune.errors import PromiseMissed
from autotune.probe.device.machine import cpu_name
from autotune.report.evidence import real_run_lines
from autotune.report.html import page
from autotune.study.history import recall
from tests import makers
from tests.makers import trial, verification
from tests.trainers import Numbers, built

STEPS = 30


class Slow(Numbers):
    """Takes a moment for each sample."""

    def __getitem__(self, place: int) -> Any:
        time.sleep(0.002)
        return super().__getitem__(place)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def promised(speed: float, folder: Path | None = None, **facts: Any) -> TuningResult:
    """A study of this machine, in this folder, whose answer is 4 x 2 at this speed."""
    of, slow = makers.configuration(4, 8), makers.configuration(2, 8)
    trials = [trial(0, speed / 2, of=slow, confirmed=speed / 2), trial(1, speed, of=of, confirmed=speed)]
    result = makers.result(trials, environment=makers.cpu(device_name=cpu_name()), **facts)
    return TuningResult.load(result.save(folder)) if folder else result


def trained(result: TuningResult, folder: Path, fields: dict[str, Any] | None = None, **parts: Any) -> Any:
    callback = autotune.PromiseCallback(result)
    fields = {"max_steps": STEPS, "disable_tqdm": True, **(fields or {})}
    built(folder / "run", fields=fields, callbacks=[callback], **parts).train()
    return callback


def test_a_promise_that_is_kept_is_told_twice_and_kept_in_the_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = promised(0.5, tmp_path / "reports" / "study")
    run = trained(result, tmp_path).run
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autotune: ")]
    assert [line.partition("settled")[1] for line in lines] == ["settled", ""]
    assert all("as promised (0.5" in line for line in lines)
    assert (run.held, run.is_slower, run.reason, run.is_over) == (True, False, "", True)
    assert 10 < run.steps < STEPS
    kept = TuningResult.load(tmp_path / "reports" / "study")
    assert kept.real_run == run == RealRun.from_dict(read_json(tmp_path / "reports" / "study" / "realized.json"))
    assert kept.to_dict()["real_run"]["held"] is True
    head, row = studies_lines(studies(tmp_path / "reports"))
    assert "real run" in head
    assert three_digits(run.measured) in row
    assert real_run_lines(kept)[0].removeprefix("the last real training ") in page(kept)
    remembered = recall(result.environment, result.identity)
    assert remembered.real_runs == (run,)
    assert str(remembered.notes[0]).startswith("earlier promises on this device: 1 real training ran at ")
    assert list((cache_folder() / "history").rglob("real/*.json")), "apart from what was probed"


def test_a_promise_that_is_missed_is_warned_of_once(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trained(promised(1e6), tmp_path).run
    (warning,) = [each for each in caught if issubclass(each.category, PromiseMissed)]
    assert "slower than promised" in str(warning.message)
    assert not run.held


def test_waiting_for_data_is_named_as_the_reason(tmp_path: Path) -> None:
    with pytest.warns(PromiseMissed, match=r"a step waits for data \d\d% of its time, 0% when"):
        run = trained(promised(1e6), tmp_path, train_dataset=Slow(240)).run
    assert run.data_wait_share > 0.3


def test_evaluation_and_saving_are_named_and_are_no_part_of_a_step(tmp_path: Path) -> None:
    result = promised(1.0)
    plain = trained(result, tmp_path).run
    fields = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 10,
        "save_total_limit": 1,
    }
    close = promised(plain.measured * 0.7)
    with pytest.warns(PromiseMissed, match=r"evaluation and saving took \d\d% of the time"):
        run = trained(close, tmp_path, fields=fields, eval_dataset=Slow(60)).run
    assert run.outside_share > 0.5
    assert run.overall < run.measured / 2
    assert run.measured > plain.measured / 4, "a busy machine aside, steps are as fast as without"


def test_another_device_is_named_and_teaches_nothing(tmp_path: Path) -> None:
    result = makers.result([trial(0, 1e6, of=makers.configuration(4, 8), confirmed=1e6)])
    with pytest.warns(PromiseMissed, match="of another device"):
        trained(result, tmp_path)
    assert recall(result.environment, result.identity).real_runs == ()


def test_other_sizes_and_short_trainings_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = promised(1e6)
    assert trained(result, tmp_path, {"per_device_train_batch_size": 8}).run is None
    assert "this training has 8 x 2 x 1 samples a step, the answer 4 x 2 x 1: not compared" in capsys.readouterr().err
    assert trained(result, tmp_path, {"max_steps": 4}).run is None
    assert "too short to compare" in capsys.readouterr().err


def test_only_the_first_rank_compares() -> None:
    callback = autotune.PromiseCallback(promised(1e6))
    args = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2, world_size=1, use_cpu=True)
    state = SimpleNamespace(is_world_process_zero=False, global_step=0)
    callback.on_train_begin(args, state, None)
    for _ in range(STEPS):
        callback.on_step_begin(args, state, None)
        callback.on_step_end(args, state, None)
    callback.on_train_end(args, state, None)
    assert callback.run is None


def test_the_short_step_at_an_epoch_s_end_is_left_out(tmp_path: Path) -> None:
    fields = {"max_steps": 60}
    whole = trained(promised(0.5), tmp_path, fields, train_dataset=Numbers(32)).run
    short = trained(promised(0.5), tmp_path, fields, train_dataset=Numbers(28)).run
    assert short.steps < whole.steps - 8


def test_the_promise_is_that_of_plain_trainings_where_the_answer_was_verified() -> None:
    result = promised(10.0)
    checked = verification(result.best.configuration)
    speeds = {"samples_per_second": 9.0, "samples_per_second_low": 8.5, "samples_per_second_high": 9.5}
    checked["measured"]["answer"] |= speeds
    assert result.promised_speed == result.best.samples_per_second
    speed = promised(10.0, verification=checked).promised_speed
    assert (speed, speed.low, speed.high) == (9.0, 8.5, 9.5)


@pytest.mark.parametrize(
    ("low", "high", "overall", "held", "is_slower"),
    [(9, 11, 10, True, False), (9, 9.8, 9.6, True, True), (8, 9, 8.5, False, True), (9, 11, 5, True, True)],
)
def test_below_the_promise(low: float, high: float, overall: float, held: bool, is_slower: bool) -> None:
    facts = {"steps": 9, "seconds": 9.0, "data_wait_share": 0.0, "outside_share": 0.0, "overall": overall}
    run = RealRun.of(Interval(10.5, 10, 11), Interval((low + high) / 2, low, high), **facts)
    assert (run.held, run.is_slower) == (held, is_slower)
    assert RealRun.from_dict(run.to_dict()) == run
