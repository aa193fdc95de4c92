"""The stopwatch against clocks that the test moves: every sample, token and second of a step is counted once."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.core import Step, Workload
from autotune.probe.train.read_back import Misconfigured
from autotune.probe.train.worst_batch import WORST_STEPS, WorstBatch
from tests.stream import (
    FIXED,
    Durations,
    Machine,
    measurement_of,
    order_of,
    watched,
)

SEEDS = range(10)


def steps_of(durations: Durations, run: int, **simulated: Any) -> list[Step]:
    return watched(order_of(4, run, run=run), durations=lambda step: durations, **simulated)[0].pace.steps


# Counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_and_tokens_are_counted_exactly(seed: int) -> None:
    chance = random.Random(seed)
    micro, accumulation = chance.randint(1, 64), chance.randint(1, 64)
    ranks, tokens = chance.randint(1, 8), chance.choice([0, 1, 128, 513])
    real = chance.randint(0, tokens)
    watch, _ = watched(order_of(micro, accumulation, ranks), tokens=tokens, padding=tokens - real)
    measurement = measurement_of(watch)
    run = min(accumulation, 3)
    counts = {(step.samples, step.tokens, step.non_padding_tokens) for step in watch.pace.steps}
    assert counts == {(micro * run, micro * run * tokens, micro * run * real)}
    composed = {(step.samples, step.tokens, step.non_padding_tokens) for step in measurement.composed_steps}
    whole = micro * accumulation
    assert composed == {(whole, whole * tokens, whole * real)}

    global_batch = whole * ranks
    assert measurement.samples_per_second is not None
    assert measurement.step_time_s is not None
    assert float(measurement.samples_per_second) == pytest.approx(global_batch / measurement.step_time_s)
    rates = {tokens: measurement.tokens_per_second, real: measurement.non_padding_tokens_per_second}
    for each, rate in rates.items():
        assert float(rate or 0.0) == pytest.approx(global_batch * each / measurement.step_time_s)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_composed_step_is_the_step_that_runs_every_micro_step(seed: int) -> None:
    chance = random.Random(seed)
    micro, accumulation, ranks = chance.randint(1, 64), chance.randint(3, 64), chance.randint(1, 8)
    durations = Durations(*(chance.uniform(0.001, 5.0) for _ in range(7)))
    told: dict[str, Any] = {"durations": lambda step: durations, "tokens": 5, "padding": 2}
    short, _ = watched(order_of(micro, accumulation, ranks), **told)
    full, _ = watched(order_of(micro, accumulation, ranks, run=accumulation), **told)
    for composed, run in zip(measurement_of(short).composed_steps, full.pace.steps, strict=True):
        assert run.seconds == pytest.approx(durations.whole(accumulation))
        for part in ("seconds", "data_wait_s", "forward_s", "backward_s", "optimizer_s", "overhead_s"):
            assert getattr(composed, part) == pytest.approx(getattr(run, part)), part
        for counted in ("samples", "tokens", "non_padding_tokens"):
            assert getattr(composed, counted) == getattr(run, counted)
    speeds = measurement_of(short).samples_per_second, measurement_of(full).samples_per_second
    assert float(speeds[0] or 0) == pytest.approx(float(speeds[1] or 1))


# Parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_part_of_a_step_comes_out_as_it_was_put_in(seed: int) -> None:
    chance = random.Random(seed)
    run = chance.randint(1, 6)
    took = Durations(*(chance.uniform(0.001, 5.0) for _ in range(7)))
    micro_steps = [took.micro_step(place, run) for place in range(run)]
    middle = took.middle if run > 2 else 0.0
    for step in steps_of(took, run):
        assert step.seconds == pytest.approx(took.whole(run))
        assert step.data_wait_s == pytest.approx(took.wait * run)
        assert step.forward_s == pytest.approx(sum(micro_steps) / 3)
        assert step.backward_s == pytest.approx(sum(micro_steps) * 2 / 3)
        # The last micro-step's end and what follows it, clipping and step, are one.
        assert step.optimizer_s == pytest.approx(took.optimizer + took.between)
        assert step.overhead_s == pytest.approx(took.rest + took.between * (run - 1))
        assert step.first_s == pytest.approx(took.first + took.between if run > 1 else 0.0)
        assert step.middle_s == pytest.approx(middle + took.between if run > 2 else 0.0)
        assert (step.middle_forward_s, step.middle_backward_s) == pytest.approx((middle / 3, middle * 2 / 3))
        assert step.last_s == pytest.approx(took.last + took.between + took.optimizer + took.rest / 2)


def test_a_trainer_that_goes_back_in_its_own_way_counts_as_going_forward_only() -> None:
    took = Durations()
    for step, usual in zip(steps_of(took, 3, goes_back_itself=True), steps_of(took, 3), strict=True):
        assert step.forward_s == pytest.approx(usual.forward_s + usual.backward_s)
        assert (step.backward_s, step.middle_backward_s) == (0.0, 0.0)
        for part in ("seconds", "data_wait_s", "optimizer_s", "overhead_s", "first_s", "middle_s", "last_s"):
            assert getattr(step, part) == pytest.approx(getattr(usual, part)), part


# The worst batch ------------------------------------------------------------------------------------------------


def longest(samples: int, tokens: int = 50) -> WorstBatch:
    ids = torch.ones(samples, tokens, dtype=torch.int64)
    return WorstBatch(({"input_ids": ids, "labels": ids},), f"{samples} x sample 7, the longest of the data")


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7])
def test_the_first_two_steps_are_on_the_worst_batch_and_are_neither_timed_nor_counted(accumulation: int) -> None:
    order = order_of(4, accumulation)
    watch, trainer = watched(
        order, longest(4), tokens=16, durations=lambda step: Durations(first=90.0 if step < 2 else 3.0)
    )
    usual, _ = watched(order, tokens=16)
    assert [{len(batch["input_ids"][0]) for batch in step} for step in trainer.seen[:3]] == [{50}, {50}, {16}]
    assert WORST_STEPS == 2
    assert [len(step) for step in trainer.seen] == [order.accumulation_steps_run] * (2 + 2 + 5)
    assert [step.tokens for step in watch.pace.steps] == [step.tokens for step in usual.pace.steps]
    assert [step.seconds for step in watch.pace.steps] == pytest.approx([step.seconds for step in usual.pace.steps])
    assert len(watch.pace.untimed) == len(usual.pace.untimed) == 2
    assert (watch.untimed_steps, usual.untimed_steps) == (4, 2)
    assert watch.micro_batch_bytes == 2 * 4 * 50 * 8
    assert (watch.worst_batch, usual.worst_batch) == ("4 x sample 7, the longest of the data", "")


@pytest.mark.parametrize("worst", [None, longest(4)], ids=["all alike", "worst"])
def test_memory_is_told_each_stage_of_the_first_two_steps_and_of_no_later_one(worst: WorstBatch | None) -> None:
    watch, _ = watched(order_of(4, 2), worst)
    micro_step = ["forward", "backward", "optimizer"]
    step = ["data", *micro_step, *micro_step]
    assert watch.stages._memory.entered == [*step, *step, "data", ""]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ended", "accumulation", "fields"),
    [
        # 4 samples of 100 tokens in 4.15 s.
        (True, 1, {"speed_to_reach": 99.0}),
        (False, 1, {"speed_to_reach": 0.9}),
        # Three of 60 micro-steps: 10.4 + 57 x (2.25 + 0.5) = 167.15 s for 240 samples = 1.44 a second; run alone 1.15.
        (False, 60, {"speed_to_reach": 1.35}),
        (True, 60, {"speed_to_reach": 1.55}),
        # 0.96 samples a second: on two ranks 1.93.
        (True, 1, {"speed_to_reach": 1.55}),
        (False, 1, {"speed_to_reach": 1.55, "ranks": 2}),
        (True, 1, {"speed_to_reach": 49.0}),
        (False, 1, {"speed_to_reach": 49.0, "count_tokens": True}),
    ],
)
def test_a_probe_whose_composed_speed_cannot_reach_the_best_ends_after_three_steps(
    ended: bool, accumulation: int, fields: dict[str, Any]
) -> None:
    watch, _ = watched(order_of(4, accumulation, **fields), tokens=100)
    assert (watch.pace.ended_early, len(watch.pace.steps)) == (ended, 3 if ended else 5)


def test_another_batch_than_asked_is_misconfigured() -> None:
    with pytest.raises(Misconfigured, match="a step took 24 samples instead of 12") as caught:
        watched(order_of(4, 3), batch_size=8)
    assert caught.value.settings["micro_batch_size"] == 8


def test_a_callers_own_packed_batches_count_as_asked() -> None:
    callers = Workload(name="model_init", task="custom", user_objects=True)
    watch, _ = watched(order_of(4, 3, workload=callers), batch_size=1, tokens=4096)
    assert {step.samples for step in watch.pace.steps} == {12}
    assert {step.tokens for step in watch.pace.steps} == {3 * 4096}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_loss_that_is_not_finite_is_never_forgotten(bad: float) -> None:
    watch, _ = watched(order_of(4, 3), loss=lambda step: bad if step == 1 else 1.0)
    assert watch.failure().where == "forward"
    good, _ = watched(order_of(4, 3))
    assert good.failure() is None


@pytest.mark.parametrize(("skipped", "reason"), [({0, 5}, ""), (set(range(20)), "fp16 overflowed: 5 of 5 timed steps")])
def test_skipped_steps_are_counted_and_mostly_skipped_ones_have_no_speed(skipped: set[int], reason: str) -> None:
    watch, _ = watched(order_of(4, 3), skipped=lambda step: step in skipped)
    assert watch.skipped_steps == (2 if len(skipped) == 2 else 7)
    failure = watch.failure()
    assert (failure.reason if failure else "").startswith(reason)
    assert bool(failure) == bool(reason)


# On a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nan_filter", [True, False])
def test_a_device_is_waited_for_only_where_the_timed_steps_begin_and_end(nan_filter: bool) -> None:
    timing = replace(FIXED, timed_least=6, timed_most=6)
    machine = Machine()
    watch, _ = watched(
        order_of(4, 2, timing=timing),
        machine=machine,
        durations=lambda step: Durations(0, 0, 0, 0, 1.0 + step / 100, 0),
        nan_filter=nan_filter,
    )
    *untimed, last, end = machine.ranks[0].synchronized
    assert untimed == pytest.approx([1.0, 2.01]), "the ends of the untimed steps"
    assert last == end == pytest.approx(2.01 + sum(step.seconds for step in watch.pace.steps))
    assert len(watch.pace.steps) >= 6
    expected = [1.0 + (timing.untimed_least + place) / 100 for place in range(len(watch.pace.steps))]
    assert [step.seconds for step in watch.pace.steps] == pytest.approx(expected)
