"""The stopwatch on simulated GPUs: what is composed is what runs, the wait is the loader's, no rank waits for ever."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core.measurement import INPUT_BOUND
from autotune.probe.order import CUDA_CONFIRMATION, CUDA_PROBE, Timing
from autotune.probe.process import ranks as ranks_module
from autotune.probe.process.ranks import LastStep
from autotune.probe.runner import waits_as_composed
from autotune.probe.train.plain import PlainTimer
from tests.stream import (
    CURVES,
    FIXED,
    Case,
    Deadlock,
    FakeMonitor,
    HostTimed,
    Machine,
    Rank,
    RunsAhead,
    SimulatedTrainer,
    clock_share,
    last_steps,
    on_gpu,
    order_of,
    watched,
)

FILTER = pytest.mark.parametrize("nan_filter", [True, False], ids=["NaN filter", "no NaN filter"])


# Composing ------------------------------------------------------------------------------------------------------


@FILTER
@pytest.mark.parametrize("accumulation", [2, 3, 4, 8, 17, 64])
@pytest.mark.parametrize("micro", [0.003, 0.018, 0.165])
def test_composed_is_what_runs(micro: float, accumulation: int, nan_filter: bool) -> None:
    compared = Case("", accumulation, on_gpu(micro), nan_filter).compared()
    assert abs(compared.error) < 0.01
    assert abs(compared.wait_error) < 0.001
    assert not compared.repeated


@FILTER
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_composed_is_what_runs_on_several_ranks(ranks: int, nan_filter: bool) -> None:
    compared = Case("", 16, on_gpu(0.03), nan_filter, ranks=ranks).compared()
    assert abs(compared.error) < 0.01
    assert abs(compared.wait_error) < 0.001


@pytest.mark.parametrize("seed", range(20))
def test_composed_is_what_runs_whatever_takes_how_long(seed: int) -> None:
    chance = random.Random(seed)
    parts = {name: 10 ** chance.uniform(-4, -1.5) for name in ("optimizer", "launch", "optimizer_launch", "rest")}
    took = on_gpu(10 ** chance.uniform(-3, -0.5), 10 ** chance.uniform(-4, -1.5), **parts)
    case = Case("", chance.randint(4, 64), took, chance.random() < 0.5, ranks=chance.choice([1, 1, 2]))
    compared = case.compared()
    # Without the filter a longer step's queue hides what the host does once a step.
    hidden_s = 0.0 if case.nan_filter else took.optimizer_launch + took.rest
    assert -0.01 < compared.error < 0.01 + hidden_s / compared.true_s
    assert abs(compared.wait_error) < 0.005


@FILTER
@pytest.mark.parametrize(
    ("workers", "load", "repeated"),
    [(4, 0.001, False), (8, 0.002, False), (2, 0.001, True), (2, 0.01, True), (4, 0.05, True), (2, 0.05, True)],
)
def test_workers_that_keep_up_with_a_whole_step_are_composed_and_others_are_run(
    workers: int, load: float, repeated: bool, nan_filter: bool
) -> None:
    compared = Case("", 64, on_gpu(0.018, load), nan_filter, workers=workers).compared()
    assert compared.repeated is repeated
    assert abs(compared.error) < 0.01


@FILTER
@pytest.mark.parametrize("load", [0.0001, 0.0005, 0.01, 0.04])
def test_loading_beside_copies_that_do_not_block_is_composed_only_if_it_adds_up(load: float, nan_filter: bool) -> None:
    assert abs(Case("", 64, on_gpu(0.018, load), nan_filter, blocking=False).compared().error) < 0.01


def test_a_probe_of_workers_fetches_a_whole_step_once_and_times_the_usual_ones() -> None:
    case = Case("", 64, on_gpu(0.018, 0.01), workers=2)
    probe, _ = case.trained(3)
    assert probe.whole_fetch_s == pytest.approx(0.01 / 2 * (64 - 2 * 2), rel=0.01), (
        "two batches of each worker were ready"
    )
    assert {step.samples for step in probe.steps} == {3}
    assert not waits_as_composed(probe)
    whole, _ = case.trained(64)
    assert whole.whole_fetch_s is None
    assert whole.data_wait_s == pytest.approx(probe.whole_fetch_s, rel=0.01)
    assert Case("", 64, on_gpu(0.018, 0.01)).trained(3)[0].whole_fetch_s is None, (
        "loading in the training process adds up"
    )


def test_fetching_a_whole_step_does_not_keep_steps_from_settling() -> None:
    took = on_gpu(0.018, 0.01)
    order = order_of(1, 64, timing=Timing())
    watch, _ = watched(order, machine=Machine(), durations=lambda step: took, workers=2)
    assert watch.pace.whole_fetch_s is not None
    assert watch.pace.whole_fetch_s > max(watch.pace.untimed)
    assert len(watch.pace.untimed) == Timing().untimed_least


# The wait for data ----------------------------------------------------------------------------------------------


@FILTER
@pytest.mark.parametrize("accumulation", [1, 2, 3, 16])
@pytest.mark.parametrize(("workers", "load"), [(0, 0.0005), (0, 0.02), (0, 0.2), (2, 0.001), (2, 0.4), (4, 0.2)])
def test_the_wait_is_the_loaders(workers: int, load: float, accumulation: int, nan_filter: bool) -> None:
    case = Case("", accumulation, on_gpu(0.06, load), nan_filter, workers=workers)
    measurement, trainer = case.trained(accumulation)
    loading = trainer.fetch_s[-len(measurement.steps) :]
    assert [step.data_wait_s for step in measurement.steps] == pytest.approx(loading, abs=1e-9)
    assert measurement.input_bound is (sum(loading) / sum(step.seconds for step in measurement.steps) >= INPUT_BOUND)
    if (workers, load) in ((0, 0.2), (2, 0.4)):
        assert measurement.input_bound
    if (workers, load) in ((0, 0.0005), (2, 0.001)):
        assert not measurement.input_bound


@FILTER
def test_the_parts_of_a_step_do_not_overlap(nan_filter: bool) -> None:
    took = on_gpu(0.018, rest=0.01)
    for step in Case("", 8, took, nan_filter).trained(8)[0].steps:
        parts = step.data_wait_s + step.forward_s + step.backward_s + step.optimizer_s
        assert step.overhead_s == pytest.approx(step.seconds - parts)
        assert took.rest / 2 - 1e-9 <= step.overhead_s <= took.rest + 8 * (took.between + took.launch)


def test_a_stopwatch_that_takes_the_hosts_clock_is_caught() -> None:
    for case, error in (
        (Case("", 64, on_gpu(0.018), nan_filter=True), 0.03),
        (Case("", 64, on_gpu(0.018), nan_filter=False), 0.6),
        (Case("", 16, on_gpu(0.06), nan_filter=False), 0.6),
        (Case("", 64, on_gpu(0.003), nan_filter=True), 0.1),
    ):
        assert case.compared(HostTimed).error > error
        assert case.compared(HostTimed).wait_error > error
    single = Case("", 1, on_gpu(0.16), nan_filter=False).compared(HostTimed)
    assert abs(single.error) < 1e-9
    assert single.wait_s > INPUT_BOUND * single.step_s > single.true_wait_s


@FILTER
def test_the_plain_trainings_wait_is_the_loaders_too(nan_filter: bool) -> None:
    rank = Machine().ranks[0]
    trainer = SimulatedTrainer(rank, order_of(1, 8, run=8), lambda step: on_gpu(0.06), nan_filter=nan_filter)
    monitor: Any = FakeMonitor(rank)
    timer = PlainTimer(Timing(untimed_least=2, timed_least=5, timed_most=5), monitor, rank)
    fetch = trainer.get_batch_samples
    trainer.get_batch_samples = lambda *args: timer.fetch(fetch, *args)  # type: ignore[method-assign]
    trainer.callback = SimpleNamespace(
        on_train_begin=lambda *_: None,
        on_optimizer_step=lambda *_: None,
        on_step_end=timer.on_step_end,
        on_train_end=lambda *_: None,
    )
    trainer.train()
    assert timer.waits[1:] == pytest.approx(trainer.fetch_s[1:]), "the first fetches a batch ahead"
    whole, _ = Case("", 8, on_gpu(0.06), nan_filter).trained(8)
    assert (timer.ends[-1] - timer.ends[0]) / 5 == pytest.approx(whole.step_time_s)


# The last step of several ranks ---------------------------------------------------------------------------------


@FILTER
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("reading_s", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_rank_waits_for_ever_at_the_last_step(
    ranks: int, reading_s: float, blocking: bool, nan_filter: bool
) -> None:
    untimed_timed_and_two_more = FIXED.untimed_least + FIXED.timed_least + 2
    assert last_steps(ranks, reading_s, nan_filter, blocking) - untimed_timed_and_two_more in (0, 1)


def test_the_next_step_could_be_missed_by_a_host_that_waits_for_the_step_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks_module, "AHEAD", 1)
    assert last_steps(2, 0.5, nan_filter=True, blocking=True)
    with pytest.raises(Deadlock, match="ranks 1 wait for ever"):
        last_steps(2, 0.5, nan_filter=False, blocking=True)


def test_the_step_after_next_could_be_missed_by_a_host_that_does_not_wait() -> None:
    assert last_steps(2, 0.5, nan_filter=False, blocking=True, kind=RunsAhead)
    with pytest.raises(Deadlock, match="ranks 1 wait for ever"):
        last_steps(2, 0.5, nan_filter=False, blocking=False, kind=RunsAhead)


def test_ranks_that_wait_for_each_other_are_a_deadlock(tmp_path: Path) -> None:
    def work(rank: Rank) -> float:
        rank.launch(1.0 + rank.number)
        if rank.number == 0 or not LastStep(1, tmp_path).reached(1):
            rank.exchange(0.5)
        rank.item()
        return rank.now()

    assert Machine(2).run(work) == [2.5, 2.5]
    LastStep(0, tmp_path).announce(-1)
    with pytest.raises(Deadlock):
        Machine(2).run(work)


# Clocks that fall -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("micro", [0.02, 0.1, 0.5, 2.0])
def test_a_rounds_speed_is_the_settled_one(name: str, micro: float) -> None:
    share, untimed_s = clock_share(CURVES[name], CUDA_CONFIRMATION, micro)
    assert share == pytest.approx(1.0, abs=0.01)
    if name in ("hot already", "power cap") and micro < 1.0:
        assert untimed_s < 2 * CUDA_CONFIRMATION.window_s + 2.1, "nothing to wait for"


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("boost falls in ten seconds", 0.14),
        ("boost falls towards heat", 0.10),
        ("power cap", 0.01),
        ("hot already", 0.0),
    ],
)
def test_a_probes_speed_is_that_of_its_first_seconds(name: str, most: float) -> None:
    shares = [clock_share(CURVES[name], CUDA_PROBE, micro)[0] - 1 for micro in (0.02, 0.1, 0.5)]
    assert all(-1e-9 <= share <= most for share in shares)
    assert max(shares) - min(shares) < 0.06, "alike for quick and slow steps"


@FILTER
def test_steps_of_many_lengths_are_not_taken_for_a_falling_clock(nan_filter: bool) -> None:
    chance = random.Random(0)
    took = [on_gpu(0.05 * chance.uniform(0.7, 1.3)) for _ in range(2000)]
    order = order_of(1, 2, run=2, timing=CUDA_CONFIRMATION)
    watch, _ = watched(order, machine=Machine(), durations=took.__getitem__, nan_filter=nan_filter)
    assert sum(watch.pace.untimed) < 2 * CUDA_CONFIRMATION.window_s + 1.0
