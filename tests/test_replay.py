"""Searches replayed on recorded tables: a slice of the benchmark that fails when the sampler gets worse, and several devices."""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from replay import OURS, Case, Found, VirtualPool, devices_of, replayed, slower
from tables import Table, TableProbe, read_table

from autotune.core.slot import Slot
from autotune.probe import Probe, ProbeOptions

SLICE = (("llama-long", 0.5), ("llama-long", 0.75), ("gpt2-vocabulary", 0.75))
NOISE = 0.02


def searches(sampler: str) -> list[Found]:
    return [replayed(Case(table, share, sampler, 0, NOISE)) for table, share in SLICE]


@pytest.fixture(scope="module")
def ours() -> list[Found]:
    return searches(OURS)


@pytest.fixture(scope="module")
def table() -> Table:
    return read_table("llama-long")


@pytest.mark.nightly
def test_ours_needs_fewer_trials_than_tpe_and_runs_out_of_memory_less(ours: list[Found]) -> None:
    tpe = searches("tpe")
    assert sum(our.out_of_memory for our in ours) < sum(item.out_of_memory for item in tpe)
    assert sum(our.trials for our in ours) < sum(item.trials for item in tpe)


def test_ours_is_as_good_as_it_was(ours: list[Found]) -> None:
    """Bars a little above what these searches came to."""
    assert fmean(our.regret for our in ours) <= 0.005
    assert max(our.regret for our in ours) <= 0.01
    assert not any(our.out_of_memory for our in ours)
    assert median(our.to_one for our in ours) <= 6
    assert all(our.trials <= 20 for our in ours)


# Several devices ------------------------------------------------------------------------------------------------------


def measuring(pool: VirtualPool, table: Table, *devices: str) -> dict[str, float]:
    """Device -> seconds of a measurement that it begins now: of the baseline on the first one, of others on the others."""
    seconds = {}
    for device, configuration in zip(devices, [table.baseline, *table.measured], strict=False):

        def work(probe: Probe, configuration=configuration, device=device) -> None:
            seconds[device] = probe(configuration, ProbeOptions(Slot(), 0.0)).probe_seconds

        pool.start(device, work, device)
    return seconds


def test_measurements_on_several_devices_end_in_the_order_of_their_seconds(table: Table) -> None:
    pool = devices_of(table, Case("llama-long", 1.0, OURS, 0, NOISE, devices=3))
    seconds = measuring(pool, table, "d0", "d1", "d2")
    for device in sorted(seconds, key=lambda device: seconds[device]):
        assert (pool.wait().device, pool.clock) == (device, seconds[device])


def test_a_measurement_begins_when_its_device_is_idle_again(table: Table) -> None:
    pool = devices_of(table, Case("llama-long", 1.0, OURS, 0, NOISE, devices=2))
    first = measuring(pool, table, "d0")["d0"]
    pool.wait()
    second = measuring(pool, table, "d1")["d1"]
    pool.wait()
    assert pool.clock == first + second


def test_several_devices_drift_by_themselves_and_one_alone_as_its_seed_says(table: Table) -> None:
    def speeds(*probes: Probe) -> list[float | None]:
        return [probe(table.baseline, ProbeOptions(Slot(), 0.0)).samples_per_second for probe in probes]

    case = Case("llama-long", 1.0, OURS, 7, 0.0, 0.1)
    assert len(set(speeds(*devices_of(table, replace(case, devices=3)).probes.values()))) == 3
    alone = TableProbe(table, table.budget(1.0), 7, 0.0, 0.1)
    assert speeds(*devices_of(table, case).probes.values()) == speeds(alone)


def test_a_slow_device_is_slower_by_its_share_whatever_it_trains(table: Table) -> None:
    slow = slower(table, 0.15)
    for configuration, speed in table.speeds.items():
        assert slow.speeds[configuration] == pytest.approx(0.85 * speed)


def test_four_devices_take_less_time_than_one_and_are_as_good(ours: list[Found]) -> None:
    four = replayed(Case(*SLICE[0], OURS, 0, NOISE, devices=4))
    assert four.wall < 0.8 * ours[0].wall
    assert four.regret <= 0.01
    assert four.left_out == 0
