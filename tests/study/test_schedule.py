"""What comes next: no search waits for what never comes, and no device's fault is taken for a configuration's."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Configuration, Measurement, Outcome
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.time_limit import TimeLimit
from autotune.executors import ExecutorLost
from autotune.executors.pool import Pool, ThreadPool
from autotune.judge.claim import COMPARISONS
from autotune.judge.standing import Standing
from autotune.probe import Probe, ProbeOptions
from autotune.sampler.constants import RISKS
from autotune.sampler.policy import Choice, End, Why
from autotune.sampler.situation import ALONE, Situation
from autotune.space.search_space import SearchSpace
from autotune.study import fleet as fleets
from autotune.study.fleet import Fleet
from autotune.study.job import Done, Run, Wait
from autotune.study.loop import open_study, search
from autotune.study.plan import Plan
from autotune.study.schedule import next_job
from autotune.study.study import Study
from tests.makers import ALLOWED, completed, ended, space
from tests.study.test_fleet import device, run

pytestmark = pytest.mark.timeout(60)
"""A search that waits for ever fails its test."""

PLAN = Plan(n_trials=50, objective="samples_per_second", confirmation_rounds=2, allowed_bytes=ALLOWED)


def threads(probes: dict[str, Probe], restarts: bool = False) -> ThreadPool:
    return ThreadPool(probes, lambda _: None, lambda _: restarts)


class Proposes:
    """A sampler that proposes these configurations, then nothing."""

    duplicates = 0

    def __init__(self, *configurations: Configuration) -> None:
        self.configurations, self.risks = configurations, list[int]()

    def choose(self, standing: Standing, situation: Situation = ALONE) -> Choice:
        """The first that is neither measured nor running; the risks that are offered are noted."""
        self.risks.append(situation.risks)
        taken = [*(trial.configuration for trial in standing.trials), *situation.running.values()]
        left = next((each for each in self.configurations if each not in taken), None)
        return Choice(None, end=End.ALL, reason="all were proposed") if left is None else Choice(left, Why.NEW)


def crash(tried: Configuration) -> Measurement:
    return ended(Outcome.CRASHED, reason="CUDA error: uncorrectable ECC error", asked=tried.values, where="forward")


def is_probe(options: ProbeOptions) -> bool:
    return options.slot.kind is SlotKind.TRIAL and options.slot.number >= 1 and not options.slot.round


# Searches that end -----------------------------------------------------------------------------------------------


def test_a_probe_whose_executor_is_lost_after_the_time_is_over_is_left_out(tmp_path: Path) -> None:
    is_over = threading.Event()

    def first(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.slot == Slot(1):
            is_over.set()
            raise TimeIsOver("over", "wait")
        return device(1.0)(tried, options)

    def second(tried: Configuration, options: ProbeOptions) -> Measurement:
        if is_probe(options):
            is_over.wait(20)
            time.sleep(0.3)
            raise ExecutorLost("gone")
        return device(1.0)(tried, options)

    study = open_study(tmp_path, space(), PLAN)
    search(study, threads({"a": first, "b": second}, restarts=True))
    assert [trial.number for trial in study.trials] == [0]


def test_ranks_that_wait_for_devices_do_so_no_longer_than_there_is_time(tmp_path: Path) -> None:
    of = space(data_parallel_size=(1, 2))

    def on(*names: str) -> Probe:
        def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
            if is_probe(options) and len(names) == 1:
                time.sleep(0.3)
                raise TimeIsOver("over", "wait")
            return device(float(len(names)))(tried, options)

        return measured

    study = open_study(tmp_path, of, PLAN)
    study.sampler = Proposes(
        *(next(tried for tried in of if tried != of.baseline and tried.data_parallel_size == n) for n in (1, 2))
    )
    search(
        study, ThreadPool({n: on(n) for n in "ab"}, lambda _: None, lambda _: False, together=lambda names: on(*names))
    )
    assert [trial.number for trial in study.trials] == [0]


def test_ctrl_c_ends_the_wait_for_a_device_that_may_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "RETURN_S", 20.0)
    study = open_study(tmp_path, space(), PLAN)
    probes = {name: device(1.0, lambda *_: True) for name in "ab"}
    devices = ThreadPool(probes, lambda _: None, lambda _: False, lambda _: True)

    def watch(progress: object) -> None:
        study.stop_request.to_stop = study.stop_request.to_stop or "waiting" in getattr(progress, "message", "")

    with pytest.raises(KeyboardInterrupt):
        search(study, devices, watch)


# What is measured, and where -------------------------------------------------------------------------------------


def test_what_was_interrupted_and_is_proposed_besides_is_probed_once(tmp_path: Path) -> None:
    def interrupted(tried: Configuration, options: ProbeOptions) -> Measurement:
        if options.slot == Slot(1):
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
    fleet = Fleet(threads({name: slowly if name == "a" else broken() for name in names}))
    study = run(tmp_path, fleet, space(), n_trials=12)
    assert {trial.measurement.outcome for trial in study.trials} == {Outcome.COMPLETED}
    assert study.standing.answer.confirmed


@pytest.mark.parametrize("confirmation", [False, True])
def test_a_device_that_breaks_later_is_left_out(tmp_path: Path, confirmation: bool) -> None:
    failed: list[ProbeOptions] = []

    def fails(options: ProbeOptions) -> bool:
        is_bad = bool(options.slot.round) if confirmation else is_probe(options)
        failed.extend([options] * is_bad)
        return is_bad

    breaks = broken(fails)
    bad = "a" if confirmation else "b"  # rounds run where the baseline did
    devices = threads({"a": slowly, "b": slowly} | {bad: breaks})
    study = run(tmp_path, devices, space(precision=("fp32", "bf16")), n_trials=12)
    assert all(measured.feasible for trial in study.trials for measured in (trial.measurement, *trial.confirmations))
    assert failed
    assert {*devices.left_out} <= {bad}


def test_what_crashes_on_two_devices_crashed(tmp_path: Path) -> None:
    ran = []

    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        if tried.micro_batch_size == 8:
            ran.append((options.slot.number, threading.current_thread().name))
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


# What comes next ---------------------------------------------------------------------------------------------------


def opened(folder: Path, *speeds: float, among: SearchSpace | None = None, **plan: Any) -> Study:
    """A study whose first configurations were measured at these speeds."""
    among = among or space(precision=("fp32", "bf16"))
    study = open_study(folder, among, replace(PLAN, **{"sampler": "random", **plan}))
    tried = [among.baseline, *(each for each in among if each != among.baseline)]
    for number, speed in enumerate(speeds):
        study.ledger.record(Slot(number), tried[number], completed(tried[number], speed, spread=1e-4))
    return study


def on_devices(names: str) -> Fleet:
    return Fleet(threads({name: device(1.0) for name in names}) if len(names) > 1 else Pool({"": device(1.0)}))


def begun(study: Study, fleet: Fleet) -> Slot | None:
    """The slot of the next job, which is then running; None if none begins."""
    step = next_job(study, fleet)
    if not isinstance(step, Run):
        return None
    study.ledger.begin(step)
    fleet._jobs[step.slot] = step
    fleet.pool._running |= dict.fromkeys(step.devices, step.slot)
    return step.slot


def test_a_search_begins_with_the_baseline_which_the_other_devices_measure_too(tmp_path: Path) -> None:
    study, fleet = opened(tmp_path), on_devices("abc")
    assert [begun(study, fleet) for _ in range(4)] == [
        Slot(),
        Slot(1, kind=SlotKind.DEVICE),
        Slot(2, kind=SlotKind.DEVICE),
        None,
    ]


def test_idle_devices_probe_different_configurations(tmp_path: Path) -> None:
    study, fleet = opened(tmp_path, 10.0), on_devices("abc")
    assert [begun(study, fleet) for _ in range(3)] == [Slot(1), Slot(2), Slot(3)]
    assert len({*study.ledger.unfinished.values()}) == 3


def test_nothing_is_tried_as_a_risk_while_other_probes_run(tmp_path: Path) -> None:
    study, fleet = opened(tmp_path, 10.0, among=space()), on_devices("ab")
    study.sampler = sampler = Proposes(*[*study.space][-2:])
    assert [begun(study, fleet) for _ in range(2)] == [Slot(1), Slot(2)]
    assert sampler.risks == [RISKS, 0]


def test_no_more_probes_begin_than_the_budget_has(tmp_path: Path) -> None:
    study, fleet = opened(tmp_path, 10.0, n_trials=2), on_devices("abc")
    slots = [begun(study, fleet) for _ in range(3)]
    assert [slot for slot in slots if slot and slot.kind is SlotKind.TRIAL] == [Slot(1)]


@pytest.mark.parametrize("names", ["a", "abc"])
def test_once_the_budget_is_used_the_fastest_is_proven_against_the_baseline(tmp_path: Path, names: str) -> None:
    study, fleet = opened(tmp_path, 10.0, 20.0, n_trials=2), on_devices(names)
    slots: list[Slot] = []
    while not isinstance(step := next_job(study, fleet), Done):
        assert isinstance(step, Run)
        slots.append(step.slot)
        study.ledger.begin(step)
        speed = 20.0 if step.slot.number else 10.0
        measured = replace(
            completed(step.configuration, speed, spread=1e-4),
            device="".join(step.devices),
            started_s=float(len(slots)),
            probe_seconds=1.0,
        )
        study.ledger.record(step.slot, step.configuration, measured)
    of_trials = [slot for slot in slots if slot.kind is SlotKind.TRIAL]
    assert all(slot.round for slot in of_trials)
    assert 2 <= len(of_trials) <= 4
    best = study.standing.answer
    assert best.number == 1
    assert study.standing.is_shown(best)
    assert step.reason == StopReason(StopKind.BUDGET, {"n_trials": 2, "further_trials": 0})


@pytest.mark.parametrize(("limit_s", "answer", "rounds"), [(None, 0, ()), (1e6, 1, (COMPARISONS + 1,))])
def test_what_a_limited_time_hands_out_without_a_proof_is_measured_again_once(
    tmp_path: Path, limit_s: float | None, answer: int, rounds: tuple[int, ...]
) -> None:
    """A proof is not worth its seconds in so short a training; memory and losses are checked all the same."""

    def probe(tried: Configuration, options: ProbeOptions) -> Measurement:
        return completed(tried, 10.0 if tried == space().baseline else 11.5, spread=1e-4, probe_seconds=100.0)

    plan = replace(PLAN, n_trials=2, sampler="random", training_steps=1000, time=TimeLimit(limit_s))
    study = open_study(tmp_path, space(), plan)
    assert search(study, probe).kind is StopKind.BUDGET
    baseline, faster = study.trials
    assert study.standing.answer == study.trials[answer]
    assert not study.standing.is_shown(faster)
    assert (baseline.rounds, faster.rounds) == ((), rounds)


def test_nothing_is_measured_against_nobody(tmp_path: Path) -> None:
    """A baseline that is fastest, or whose only rival falls out in the first round."""
    assert isinstance(next_job(opened(tmp_path / "one", 20.0, 5.0, n_trials=2), on_devices("a")), Done)
    study = opened(tmp_path / "two", 10.0, 10.1, n_trials=2)
    for number, speed in ((1, 5.0), (0, 10.0)):
        tried = study.trials[number].configuration
        study.ledger.record(Slot(number, 1), tried, completed(tried, speed, spread=1e-4))
    assert isinstance(next_job(study, on_devices("a")), Done)


def test_who_wishes_to_stop_waits_for_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    study, fleet = opened(tmp_path, 10.0), on_devices("ab")
    assert begun(study, fleet) == Slot(1)
    study.stop_request.to_stop = True
    assert isinstance(next_job(study, fleet), Wait)


def test_what_failed_on_the_only_device_above_suspicion_runs_on_the_other_one(tmp_path: Path) -> None:
    """Nothing runs that it could wait for."""
    study, fleet = opened(tmp_path, 10.0, 20.0, n_trials=2), on_devices("ab")
    failed = fleet._doubts
    failed |= {Slot(2, 1): "b", Slot(3, 1): "b"}
    assert fleet.is_suspect("b")
    step = next_job(study, fleet)
    assert isinstance(step, Run)
    assert step.devices == ("a",)
    failed[step.slot] = "a"
    again = next_job(study, fleet)
    assert isinstance(again, Run)
    assert (again.slot, again.devices) == (step.slot, ("b",))


def test_what_is_measured_and_changes_less_is_proven_before_the_end_if_it_is_as_fast(tmp_path: Path) -> None:
    among = space(micro_batch_size=(2, 8), workers=(0, 2))
    study, fleet = opened(tmp_path, among=among, n_trials=4, sampler="physics", training_steps=10**6), on_devices("a")
    slow, slow_workers, fast, fast_workers = among
    tried = [slow, fast_workers, fast, slow_workers]
    order = [*((number, 0) for number in range(4)), (0, 1), (1, 1), (1, 2), (0, 2)]

    def record(slot: Slot, begun: float) -> None:
        speed = 20.0 if tried[slot.number].micro_batch_size == 8 else 10.0
        measured = completed(tried[slot.number], speed, spread=1e-4)
        study.ledger.record(slot, tried[slot.number], replace(measured, started_s=begun, probe_seconds=10.0))

    for place, (number, round_number) in enumerate(order):
        record(Slot(number, round_number), 10.0 * place)
    assert study.standing.answer.configuration == fast_workers
    jobs = []
    while isinstance(step := next_job(study, fleet), Run):
        jobs.append(step.slot)
        record(step.slot, 70.0 + 10.0 * len(jobs))
    assert jobs == [Slot(2, 2), Slot(2, 3), Slot(0, 3)], "a pair with the last of the baseline, and a new one"
    assert study.standing.answer.configuration == fast
