"""Several devices in the loop: what is compared on one device, losses, and devices that differ."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.device import LeftOut, LeftOutKind
from autotune.core.errors import SearchFailed
from autotune.core.slot import Slot, SlotKind
from autotune.executors import ExecutorLost
from autotune.executors.pool import Pool, ThreadPool
from autotune.probe import Probe, ProbeOptions
from autotune.sampler.constants import DIFFER
from autotune.sampler.optuna_samplers import OptunaSampler
from autotune.sampler.situation import Situation
from autotune.space.search_space import SearchSpace
from autotune.study.fleet import Fleet, device_effects
from autotune.study.loop import open_study, search
from autotune.study.plan import Plan, Watch
from autotune.study.study import Study
from tests.makers import ALLOWED, completed, configuration, out_of_memory, space, standing_of

PLAN = Plan(n_trials=50, objective="samples_per_second", allowed_bytes=ALLOWED)


def device(factor: float, lost: Callable[[Configuration, ProbeOptions], bool] = lambda *_: False) -> Probe:
    """A device of this speed; lost: of what it is lost with."""
    rng = random.Random(factor)

    def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
        if lost(tried, options):
            raise ExecutorLost("it was unplugged")
        speed = (10 + tried.micro_batch_size) * factor * math.exp(rng.gauss(0, 0.002))
        return replace(completed(tried, speed, spread=1e-3), probe_seconds=1.0)

    return measured


def run(
    folder: Path, pool: Pool | Fleet, of: SearchSpace, watch: Watch = lambda progress: None, **plan: int | str
) -> Study:
    options = {"n_trials": 6, "objective": "samples_per_second", "confirmation_rounds": 2} | plan
    study = open_study(folder, of, Plan(allowed_bytes=ALLOWED, **options))
    search(study, pool, watch)
    return study


def searched(folder: Path, probes: dict[str, Probe], **plan: int | str) -> tuple[Study, Fleet]:
    fleet = Fleet(ThreadPool(probes, lambda name: None, lambda name: False))
    return run(folder, fleet, space(), **plan), fleet


def test_the_answer_is_proven_on_one_device_or_across_and_all_devices_measure_the_baseline(tmp_path: Path) -> None:
    study, fleet = searched(tmp_path, {"a": device(1.0), "b": device(1.0)})
    assert [trial.number for trial in study.trials] == list(range(len(study.trials)))
    best, baseline = study.standing.answer, study.trials[0]
    assert standing_of([baseline, best]).is_shown(best)
    both = ({measured.device for measured in trial.measurements} for trial in (best, baseline))
    assert set.intersection(*both)
    assert {study.trials[0].measurement.device, *study.ledger.calibrations} == {"a", "b"}
    assert sum(each.trials for each in fleet.described(study.ledger)) == len(study.trials)


def test_where_the_baseline_does_not_fit_devices_repeat_one_trial_that_does(tmp_path: Path) -> None:
    def tight(probe: Probe) -> Probe:
        def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
            if tried == space().baseline:
                return out_of_memory(tried)
            return replace(probe(tried, options), probe_seconds=1.0 / tried.micro_batch_size)

        return measured

    study, fleet = searched(tmp_path, {name: tight(device(1.0)) for name in "abcd"}, n_trials=50, confirmation_rounds=1)
    repeated = fleet.calibration_trial(study.ledger)
    compared = {name: known for name, known in study.ledger.calibrations.items() if known.feasible}
    assert repeated is not None
    assert repeated.feasible
    assert compared
    assert {known.configuration for known in compared.values()} == {repeated.configuration}
    assert {*device_effects(study.trials, study.ledger.calibrations)} == {*fleet.pool.devices}


def test_an_order_of_a_lost_executor_runs_on_another_one(tmp_path: Path) -> None:
    study, fleet = searched(
        tmp_path, {"a": device(1.0), "b": device(1.0, lambda _, options: options.slot.kind is not SlotKind.DEVICE)}
    )
    assert fleet.pool.left_out == {"b": LeftOut(LeftOutKind.LOST, detail="it was unplugged")}
    assert all(trial.measurement.outcome is Outcome.COMPLETED for trial in study.trials)
    assert [trial.number for trial in study.trials] == list(range(len(study.trials)))


@pytest.mark.parametrize("all_are_lost", [False, True])
def test_a_configuration_that_loses_two_executors_crashed(tmp_path: Path, all_are_lost: bool) -> None:
    """Also if it takes all devices with it: it is not begun for ever."""
    bad: list[Configuration] = []

    def kills(tried: Configuration, options: ProbeOptions) -> bool:
        if not bad and options.slot == Slot(1):
            bad.append(tried)
        return tried in bad

    restarts = iter([False, False, *[True, False] * 10] if all_are_lost else [True] * 20)
    probes = {name: device(1.0, kills) for name in "ab"}
    study = run(tmp_path, ThreadPool(probes, lambda _: None, lambda _: next(restarts), lambda _: all_are_lost), space())
    (crashed,) = [trial for trial in study.trials if trial.measurement.outcome is Outcome.CRASHED]
    assert crashed.configuration == bad[0]
    assert crashed.measurement.reason == "two executors were lost while they ran it"


def joining(lost: Callable[[Configuration, ProbeOptions], bool] = lambda *_: False) -> ThreadPool:
    """Two devices whose ranks are twice as fast together; never more runs than there are devices."""
    using: list[str] = []

    def on(*names: str) -> Probe:
        def measured(tried: Configuration, options: ProbeOptions) -> Measurement:
            assert len(names) == tried.data_parallel_size
            assert not {*names} & {*using}
            using.extend(names)
            try:
                if lost(tried, options):
                    raise ExecutorLost("it was unplugged")
                return device(1.0)(tried, options) if len(names) == 1 else device(2.0)(tried, options)
            finally:
                for name in names:
                    using.remove(name)

        return measured

    return ThreadPool(
        {name: on(name) for name in "ab"}, lambda _: None, lambda _: False, together=lambda names: on(*names)
    )


def with_ranks(folder: Path, lost: Callable[[Configuration, ProbeOptions], bool] = lambda *_: False) -> Study:
    return run(folder, joining(lost), space(data_parallel_size=(1, 2)), n_trials=50)


def test_ranks_take_devices_from_the_pool_in_probes_and_rounds(tmp_path: Path) -> None:
    study = with_ranks(tmp_path)
    assert {(t.configuration.data_parallel_size, " + " in t.measurement.device) for t in study.trials} == {
        (1, False),
        (2, True),
    }
    best = study.standing.answer
    assert best.configuration.data_parallel_size == 2
    assert best.confirmed
    assert study.standing.is_shown(best)
    assert {frozenset(measured.device.split(" + ")) for measured in best.confirmations} == {frozenset("ab")}


def test_ranks_that_lost_a_device_cannot_run_on_the_one_that_is_left_and_can_once_it_is_back(tmp_path: Path) -> None:
    study = with_ranks(tmp_path, lambda tried, _: tried.data_parallel_size == 2)
    (wide,) = [trial for trial in study.trials if trial.configuration.data_parallel_size == 2]
    assert wide.measurement.outcome is Outcome.UNSUPPORTED
    assert study.standing.answer.configuration.data_parallel_size == 1
    study = with_ranks(tmp_path)
    assert all(trial.measurement.outcome is Outcome.COMPLETED for trial in study.trials)
    assert study.standing.answer.configuration.data_parallel_size == 2


def test_a_search_without_a_device_fails(tmp_path: Path) -> None:
    with pytest.raises(SearchFailed, match="No device is left"):
        searched(tmp_path, {"a": device(1.0, lambda *_: True), "b": device(1.0, lambda *_: True)})


def test_a_search_that_lost_all_devices_goes_on_with_one_that_returns(tmp_path: Path) -> None:
    lost = iter([True, True])
    probes = {name: device(1.0, lambda *_: next(lost, False)) for name in "ab"}
    returns, seen = iter([False, False, False, True]), []
    pool = ThreadPool(probes, lambda _: None, lambda _: next(returns), lambda name: name == "b")
    study = run(tmp_path, pool, space(), watch=lambda progress: seen.append(progress.message))
    assert pool.left_out.keys() == {"a"}
    assert study.standing.answer.confirmed
    assert {trial.measurement.device for trial in study.trials} == {"b"}
    assert [message for message in seen if "waiting" in message]


def test_what_is_best_ends_early_on_no_slower_device(tmp_path: Path) -> None:
    """A slow device has to reach as much as it shares of the other's speed, less what is not known of that."""
    study, fleet = searched(tmp_path, {"a": device(1.0), "b": device(0.93)}, n_trials=3)
    ledger = study.ledger
    ledger.standing = standing_of([replace(study.trials[0], confirmations=())])
    first = study.trials[0].measurement.device
    other = "b" if first == "a" else "a"
    (mean, own), (of_first, its) = (fleet.effects(ledger)[name] for name in (other, first))

    def share(name: str) -> float:
        return fleet.share_reached(ledger, name)

    assert share(first) == 1.0
    assert share(other) == pytest.approx(math.exp(mean - of_first - 1.96 * math.hypot(own, its)))
    assert share("unknown") < math.exp(-1.96 * DIFFER)


@pytest.mark.parametrize(
    ("speeds", "left_out"),
    [((1.0, 1.0, 0.75), {"c"}), ((1.0, 1.0, 0.86, 0.68), {"c", "d"}), ((1.0, 0.8), {"b"})],
)
def test_the_slower_ones_are_left_out(tmp_path: Path, speeds: tuple[float, ...], left_out: set[str]) -> None:
    _, fleet = searched(tmp_path, dict(zip("abcd", map(device, speeds), strict=False)), n_trials=3)
    assert {*fleet.pool.left_out} == left_out
    assert all(reason.kind is LeftOutKind.SLOWER for reason in fleet.pool.left_out.values())


def test_effects_are_those_of_the_devices_and_not_of_what_they_ran() -> None:
    speeds = {"a": 1.03, "b": 1.0, "c": 0.97}
    rounds = [replace(completed(configuration(), 10 * speeds[name], spread=1e-3), device=name) for name in "abc"]
    rounds = [replace(measured, round=number) for number, measured in enumerate(rounds, 1)]
    trials = [Trial(number, configuration(), rounds[0], tuple(rounds)) for number in range(4)]
    effects = device_effects(trials, {})
    assert [effects[name][0] for name in "abc"] == pytest.approx([0.03, 0.0, -0.03], abs=0.006)
    assert all(0 < deviation < 0.02 for _, deviation in effects.values())
    speeds["c"] = 0.85
    slow = [replace(completed(configuration(), 10 * speeds[name], spread=1e-3), device=name) for name in "abc"]
    once = (
        [Trial(0, configuration(), slow[0], ())],
        {name: Trial(0, configuration(), m) for name, m in zip("bc", slow[1:], strict=True)},
    )
    narrow, wide = (device_effects(*once, faulty=faulty)["c"][0] for faulty in ((), ("c",)))
    assert math.log(0.85) < wide < narrow, "of a faulty device little is believed beforehand"
    assert device_effects(trials[:1], {}).keys() == {"a", "b", "c"}
    assert device_effects([Trial(0, configuration(), rounds[0])], {}) == {}


def test_an_optuna_sampler_is_told_what_a_mean_device_would_have_measured(tmp_path: Path) -> None:
    study = open_study(tmp_path, space(), replace(PLAN, sampler="random"))
    tried = study.space.baseline
    sampler = study.sampler
    assert isinstance(sampler, OptunaSampler)
    slow = Trial(0, tried, replace(completed(tried, 10.0), device="slow"))
    sampler.choose(standing_of([slow]), Situation(effects={"slow": (-0.07, 0.01)}))
    assert sampler.study.trials[0].value == pytest.approx(10.0 * math.exp(0.07))
