"""Probing on several devices: no search waits for what never comes, and no device's fault is taken for a configuration's."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.executors import ExecutorLost, pool
from autotune.executors.pool import Pool, ThreadPool
from autotune.probe import Probe, ProbeOptions
from autotune.study.loop import open_study, search
from autotune.study.objective import best_trial
from autotune.study.plan import Plan
from autotune.study.study import Study
from tests.makers import ALLOWED, ended, space
from tests.study.test_devices import device, run

PLAN = Plan(
    n_trials=50,
    objective="samples_per_second",
    confirmation_rounds=2,
    memory_limit_bytes=ALLOWED,
    allowed_bytes=ALLOWED,
)


def ends(study: Study, devices: Pool, seconds: float = 30.0) -> None:
    """Search, and fail where that waits for ever; raises what the search raises."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            search(study, devices)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def threads(probes: dict[str, Probe], restarts: bool = False) -> ThreadPool:
    return ThreadPool(probes, lambda _: None, lambda _: restarts)


def over() -> TimeIsOver:
    return TimeIsOver("over", "wait")


def crash(tried: Configuration) -> Measurement:
    return ended(Outcome.CRASHED, reason="CUDA error: uncorrectable ECC error", asked=tried.values, where="forward")


def is_probe(options: ProbeOptions) -> bool:
    return options.number >= 1 and not options.confirmation


# Searches that end -----------------------------------------------------------------------------------------------


def test_a_probe_whose_executor_is_lost_after_the_time_is_over_is_left_out(tmp_path: Path) -> None:
    is_over = threading.Event()

    def first(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.number == 1:
            is_over.set()
            raise over()
        return device(1.0)(tried, options)

    def second(tried: Configuration, options: ProbeOptions) -> Measurement:
        if is_probe(options):
            is_over.wait(20)
            time.sleep(0.3)
            raise ExecutorLost("gone")
        return device(1.0)(tried, options)

    study = open_study(tmp_path, space(), PLAN)
    ends(study, threads({"a": first, "b": second}, restarts=True))
    assert not study.running


def test_a_baseline_that_is_lost_once_the_time_is_over_ends_the_search(tmp_path: Path) -> None:
    """Device b repeats the baseline meanwhile, and says that the time is over."""
    is_over = threading.Event()

    def first(tried: Configuration, options: ProbeOptions) -> Measurement:
        is_over.wait(20)
        time.sleep(0.3)
        raise ExecutorLost("gone")

    def second(tried: Configuration, options: ProbeOptions) -> Measurement:
        is_over.set()
        raise over()

    with pytest.raises(TimeIsOver):
        ends(open_study(tmp_path, space(), PLAN), threads({"a": first, "b": second}, restarts=True))


def test_ranks_that_wait_for_devices_do_so_no_longer_than_there_is_time(tmp_path: Path) -> None:
    of = space(data_parallel_size=(1, 2))

    def on(*names: str) -> Probe:
        def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
            if is_probe(options) and len(names) == 1:
                time.sleep(0.3)
                raise over()
            return device(float(len(names)))(tried, options)

        return measured

    study = open_study(tmp_path, of, PLAN)
    study.queue += [
        next(tried for tried in of if tried != of.baseline and tried.data_parallel_size == n) for n in (1, 2)
    ]
    ends(
        study, ThreadPool({n: on(n) for n in "ab"}, lambda _: None, lambda _: False, together=lambda names: on(*names))
    )
    assert not study.running


def test_the_last_probe_runs_anew_when_its_device_is_lost_after_the_rounds(tmp_path: Path) -> None:
    rounds, lost = [], []

    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.confirmation:
            rounds.append(time.monotonic())
        elif options.number == 1 and not lost:
            while not rounds or time.monotonic() - rounds[-1] < 1.0:
                time.sleep(0.05)
            lost.append(tried)
            raise ExecutorLost("its node died")
        return device(1.0)(tried, options)

    study = open_study(tmp_path, space(), PLAN)
    ends(study, threads(dict.fromkeys("abc", measured)))
    assert lost[0] in [trial.configuration for trial in study.trials]


def test_ctrl_c_ends_the_wait_for_a_device_that_may_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RETURN_S", 20.0)
    study = open_study(tmp_path, space(), PLAN)
    probes = {name: device(1.0, lambda *_: True) for name in "ab"}
    devices = ThreadPool(probes, lambda _: None, lambda _: False, lambda _: True)

    def watch(progress: object) -> None:
        study.wish.to_stop = study.wish.to_stop or "waiting" in getattr(progress, "message", "")

    with pytest.raises(KeyboardInterrupt):
        search(study, devices, watch)


# What is measured, and where -------------------------------------------------------------------------------------


def test_two_executors_lost_in_two_rounds_are_no_crash(tmp_path: Path) -> None:
    hit = set()

    def lost(_: Configuration, options: ProbeOptions) -> bool:
        is_new = options.number == 0 and options.confirmation in (1, 2) and options.confirmation not in hit
        hit.update([options.confirmation] * is_new)
        return is_new

    study = run(tmp_path, threads({name: device(1.0, lost) for name in "ab"}, restarts=True), space())
    assert len(study.losses) == 2
    assert study.trials[0].feasible


def test_what_was_interrupted_and_is_proposed_besides_is_probed_once(tmp_path: Path) -> None:
    def interrupted(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.number == 1:
            raise KeyboardInterrupt
        return device(1.0)(tried, options)

    def slow(tried: Configuration, options: ProbeOptions) -> Measurement:
        time.sleep(0.1)
        return device(1.0)(tried, options)

    of, plan = space(precision=("fp32", "bf16")), {"sampler": "tpe", "n_trials": 5}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Pool({"": interrupted}), of, **plan)
    study = run(tmp_path, threads(dict.fromkeys("ab", slow)), of, **plan)
    assert max(Counter(trial.configuration for trial in study.trials).values()) == 1


def test_rounds_of_one_device_are_not_completed_on_several(tmp_path: Path) -> None:
    seen = []

    def interrupted(tried: Configuration, options: ProbeOptions) -> Measurement:
        seen.extend([options] * bool(options.confirmation))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return device(1.0)(tried, options)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Pool({"": interrupted}), space())
    study = run(tmp_path, threads({name: device(1.0) for name in "ab"}), space())
    at: dict[int, set[str]] = {}
    for trial in study.trials:
        for measured in trial.confirmations:
            at.setdefault(measured.round, set()).add(measured.device)
    assert at[1] == {""}
    assert len(at) >= 3
    assert all(len(names) == 1 for names in at.values())


def test_rounds_are_compared_where_the_time_ends_in_another_one(tmp_path: Path) -> None:
    done = threading.Event()

    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.confirmation == 2:
            done.wait(20)
            raise over()
        return device(1.0)(tried, options)

    study = open_study(tmp_path, space(), PLAN)

    def watch(progress: object) -> None:
        if any(1 in trial.rounds for trial in study.trials[1:]) and 1 in study.trials[0].rounds:
            done.set()

    search(study, threads(dict.fromkeys("ab", measured)), watch)
    assert any(trial.rounds == (1,) for trial in study.trials)
    assert study.numerics is not None


# Devices that are broken ------------------------------------------------------------------------------------------


def broken(when: Callable[[ProbeOptions], bool] = lambda _: True) -> Probe:
    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        return crash(tried) if when(options) else device(1.0)(tried, options)

    return measured


def slowly(tried: Configuration, options: ProbeOptions) -> Measurement:
    time.sleep(0.2)
    return device(1.0)(tried, options)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_device_on_which_all_crashes_is_left_out_and_spoils_nothing(tmp_path: Path, names: str) -> None:
    """Also where the baseline is its first probe."""
    study = run(tmp_path, threads({name: slowly if name == "a" else broken() for name in names}), space(), n_trials=12)
    assert {trial.measurement.outcome for trial in study.trials} == {Outcome.COMPLETED}
    assert best_trial(study.trials, "samples_per_second").confirmed
    assert "b was left out" in study.notes[0]


@pytest.mark.parametrize("confirmation", [False, True])
def test_a_device_that_breaks_later_is_left_out(tmp_path: Path, confirmation: bool) -> None:
    breaks = broken(lambda options: bool(options.confirmation) if confirmation else options.number >= 1)
    devices = threads({"a": slowly, "b": breaks})
    study = run(tmp_path, devices, space(precision=("fp32", "bf16")), n_trials=12)
    assert all(measured.feasible for trial in study.trials for measured in (trial.measurement, *trial.confirmations))
    assert study.faults["b"] >= 1
    assert {*devices.left_out} <= {"b"}


def test_what_crashes_on_two_devices_crashed(tmp_path: Path) -> None:
    ran = []

    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        if tried.micro_batch_size == 8:
            ran.append((options.number, threading.current_thread().name))
            return crash(tried)
        return device(1.0)(tried, options)

    devices = threads(dict.fromkeys("ab", measured))
    study = run(tmp_path, devices, space(), n_trials=12)
    outcomes = {trial.number: trial.measurement.outcome for trial in study.trials}
    assert {number: outcomes[number] for number, _ in ran} == dict.fromkeys(dict(ran), Outcome.CRASHED)
    assert len({*ran}) == len(ran) == 2 * len(dict(ran))
    assert not devices.left_out


def test_a_baseline_that_crashes_everywhere_ends_the_search(tmp_path: Path) -> None:
    with pytest.raises(SearchFailed, match="The baseline crashed"):
        run(tmp_path, threads(dict.fromkeys("ab", broken())), space())
