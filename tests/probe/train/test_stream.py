"""The stopwatch on simulated GPUs: what is composed is what runs, the wait is the loader's, no rank waits for ever."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core.measurement import INPUT_BOUND
from autotune.probe.order import Timing
from autotune.probe.train.plain import PlainTimer
from tests.stream import (
    FIXED,
    Case,
    FakeMonitor,
    Machine,
    SimulatedTrainer,
    last_steps,
    on_gpu,
    order_of,
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


# Clocks that fall -----------------------------------------------------------------------------------------------
