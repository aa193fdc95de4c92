"""The stopwatch against a clock that the test moves: every sample, token and second of a step is counted once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.configuration import Configuration
from autotune.measurement import Interval, Measurement, Outcome, Step
from autotune.probe import stopwatch
from autotune.probe.order import Order, Timing
from autotune.probe.stopwatch import Busyness, Misconfigured, Stopwatch
from autotune.workload import Workload

SEEDS = range(40)
FIXED = Timing(untimed_least=2, untimed_most=2, timed_least=5, timed_most=5, target=0.0, seconds=1e9)


@dataclass
class Clock:
    """Seconds that pass when the test says so."""

    now: float = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", clock)
    return clock


@dataclass
class Durations:
    """How long each part of a simulated step takes, seconds; `wait` is that of one micro-batch."""

    wait: float = 0.5
    first: float = 3.0
    middle: float = 2.0
    last: float = 2.5
    optimizer: float = 1.0
    callbacks: float = 0.25


@dataclass
class SimulatedTrainer:
    """Calls a stopwatch as the Trainer does, in the Trainer's order, while the test's clock runs."""

    clock: Clock
    order: Order
    durations: Callable[[int], Durations] = lambda step: Durations()
    tokens: int = 0
    batch_size: int | None = None
    loss: Callable[[int], float] = lambda step: 1.0
    model: Any = field(default_factory=lambda: torch.nn.Linear(2, 2))
    control: Any = field(default_factory=lambda: SimpleNamespace(should_training_stop=False))

    def __post_init__(self) -> None:
        assert self.order.configuration is not None
        self.size = self.batch_size or self.order.configuration.micro_batch_size
        loader = SimpleNamespace(total_batch_size=self.order.configuration.micro_batch_size)
        self.callback_handler = SimpleNamespace(train_dataloader=loader)
        self.accelerator = SimpleNamespace(backward=lambda loss: None)
        self.step = 0

    def add_callback(self, callback: Any) -> None:
        self.callback = callback

    def get_batch_samples(self, iterator: Iterator[Any], number: int) -> tuple[list[Any], int]:
        self.clock.sleep(self.durations(self.step).wait * number)
        batch = {"labels": torch.ones(self.size)}
        if self.tokens:
            batch = {"input_ids": torch.ones(self.size, self.tokens, dtype=torch.int64)} | batch
        return [batch] * number, number

    def training_step(self, seconds: float) -> torch.Tensor:
        self.clock.sleep(seconds / 3)
        self.accelerator.backward(None)
        self.clock.sleep(seconds * 2 / 3)
        return torch.tensor(self.loss(self.step))

    def train(self, most: int = 1000) -> None:
        run = self.order.accumulation_steps_run
        self.callback.on_train_begin(None, None, self.control)
        while not self.control.should_training_stop and self.step < most:
            took = self.durations(self.step)
            self.get_batch_samples(iter(()), run)
            self.clock.sleep(took.callbacks / 2)
            for micro in range(run):
                last = micro == run - 1
                self.training_step(took.last if last else took.first if micro == 0 else took.middle)
            self.clock.sleep(took.optimizer)
            self.clock.sleep(took.callbacks / 2)
            self.callback.on_step_end(None, None, self.control)
            self.step += 1


def order_of(micro: int, accumulation: int, ranks: int = 1, run: int | None = None, **fields: Any) -> Order:
    return Order(
        **{
            "kind": "probe",
            "folder": "",
            "deadline_s": 1.0,
            "configuration": Configuration(micro, accumulation, ranks),
            "accumulation_steps_run": run or min(accumulation, 3),
            "workload": Workload(name="simulated", task="causal-lm"),
            "timing": FIXED,
            **fields,
        }
    )


def watched(clock: Clock, order: Order, **simulated: Any) -> tuple[Stopwatch, SimulatedTrainer]:
    watch, trainer = Stopwatch(order), SimulatedTrainer(clock, order, **simulated)
    watch.attach(trainer)
    trainer.train()
    return watch, trainer


def measurement_of(watch: Stopwatch) -> Measurement:
    configuration = watch.order.configuration
    assert configuration is not None
    return Measurement(
        Outcome.COMPLETED,
        accumulation_steps=configuration.gradient_accumulation_steps,
        accumulation_steps_run=watch.order.accumulation_steps_run,
        data_parallel_size=configuration.data_parallel_size,
        steps=tuple(watch.steps),
    )


# Counting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_and_tokens_are_counted_exactly(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    micro, accumulation = chance.randint(1, 64), chance.randint(1, 64)
    ranks, tokens = chance.randint(1, 8), chance.choice([0, 1, 128, 513])
    watch, _ = watched(clock, order_of(micro, accumulation, ranks), tokens=tokens)
    measurement = measurement_of(watch)
    run = min(accumulation, 3)
    assert {(step.samples, step.tokens) for step in watch.steps} == {(micro * run, micro * run * tokens)}
    composed = {(step.samples, step.tokens) for step in measurement.composed_steps}
    assert composed == {(micro * accumulation, micro * accumulation * tokens)}

    global_batch = micro * accumulation * ranks
    assert measurement.samples_per_second is not None
    assert measurement.step_time_s is not None
    assert float(measurement.samples_per_second) == pytest.approx(global_batch / measurement.step_time_s)
    if tokens:
        assert float(measurement.tokens_per_second or 0) == pytest.approx(
            global_batch * tokens / measurement.step_time_s
        )
    else:
        assert measurement.tokens_per_second is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_composed_step_is_the_step_that_runs_every_micro_step(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    micro, accumulation = chance.randint(1, 64), chance.randint(3, 64)
    durations = Durations(*(chance.uniform(0.001, 5.0) for _ in range(6)))
    short, _ = watched(clock, order_of(micro, accumulation), durations=lambda step: durations)
    full, _ = watched(clock, order_of(micro, accumulation, run=accumulation), durations=lambda step: durations)
    for composed, run in zip(measurement_of(short).composed_steps, full.steps, strict=True):
        expected = (
            durations.wait * accumulation
            + durations.first
            + (accumulation - 2) * durations.middle
            + durations.last
            + durations.optimizer
            + durations.callbacks
        )
        assert run.seconds == pytest.approx(expected)
        assert composed.seconds == pytest.approx(run.seconds)
        assert composed.data_wait_s == pytest.approx(run.data_wait_s)
        assert (composed.samples, composed.tokens) == (run.samples, run.tokens)
    speeds = measurement_of(short).samples_per_second, measurement_of(full).samples_per_second
    assert float(speeds[0] or 0) == pytest.approx(float(speeds[1] or 1))


@pytest.mark.parametrize(("run", "first", "middle"), [(1, 0.0, 0.0), (2, 3.0, 0.0), (3, 3.0, 2.0), (5, 3.0, 2.0)])
def test_every_part_of_a_step_lands_in_its_own_field(clock: Clock, run: int, first: float, middle: float) -> None:
    watch, _ = watched(clock, order_of(4, run, run=run))
    for step in watch.steps:
        assert step == Step(
            seconds=pytest.approx(0.5 * run + 0.25 + (run >= 2) * 3.0 + max(0, run - 2) * 2.0 + 2.5 + 1.0),
            data_wait_s=pytest.approx(0.5 * run),
            first_s=pytest.approx(first),
            middle_s=pytest.approx(middle),
            last_s=pytest.approx(2.5 + 1.0 + 0.125),
            optimizer_s=pytest.approx(1.0 + 0.125),
            samples=4 * run,
            tokens=0,
        )


def test_waiting_for_data_is_inside_a_step(clock: Clock) -> None:
    slow, _ = watched(clock, order_of(4, 1), durations=lambda step: Durations(wait=7.0))
    assert {round(step.seconds - step.data_wait_s, 6) for step in slow.steps} == {3.75}
    assert {step.data_wait_s for step in slow.steps} == {7.0}


def test_steps_add_up_to_all_the_time_there_was(clock: Clock) -> None:
    chance = random.Random(0)
    times = [Durations(*(chance.uniform(0.1, 2.0) for _ in range(6))) for _ in range(7)]
    begun = clock.now
    watch, _ = watched(clock, order_of(2, 3), durations=lambda step: times[min(step, 6)])
    assert sum(watch.untimed) + sum(step.seconds for step in watch.steps) == pytest.approx(clock.now - begun)


def test_the_bytes_of_the_largest_micro_batch_are_kept(clock: Clock) -> None:
    watch, _ = watched(clock, order_of(4, 3), tokens=16)
    assert watch.micro_batch_bytes == 4 * 16 * 8 + 4 * 4


# When enough is known -------------------------------------------------------------------------------------------


def test_untimed_steps_end_when_a_step_resembles_the_one_before(clock: Clock) -> None:
    timing = Timing(untimed_least=2, untimed_most=8, timed_least=3, timed_most=3)
    times = [9.0, 6.0, 4.0, 3.9, 3.9, 3.9, 3.9]
    watch, _ = watched(
        clock, order_of(1, 1, timing=timing), durations=lambda step: Durations(0, 0, 0, times[step], 0, 0)
    )
    assert watch.untimed == pytest.approx([9.0, 6.0, 4.0, 3.9])
    assert [step.seconds for step in watch.steps] == pytest.approx([3.9] * 3)


def test_untimed_steps_that_never_settle_end_at_their_most(clock: Clock) -> None:
    timing = Timing(untimed_least=2, untimed_most=5, timed_least=3, timed_most=3)
    watch, _ = watched(
        clock,
        order_of(1, 1, timing=timing),
        durations=lambda step: Durations(0, 0, 0, 1.0 + 9.0 * (step % 2), 0, 0),
    )
    assert len(watch.untimed) == 5


def test_steady_steps_end_at_their_least_and_restless_ones_at_their_most(clock: Clock) -> None:
    timing = Timing(untimed_least=1, untimed_most=1, timed_least=5, timed_most=12, target=0.02, seconds=1e9)
    steady, _ = watched(clock, order_of(1, 1, timing=timing))
    assert len(steady.steps) == 5
    chance = random.Random(1)
    restless, _ = watched(
        clock,
        order_of(1, 1, timing=timing),
        durations=lambda step: Durations(0, 0, 0, chance.uniform(1.0, 4.0), 0, 0),
    )
    assert len(restless.steps) == 12


def test_a_probe_ends_when_its_seconds_are_over_but_not_before_three_steps(clock: Clock) -> None:
    chance = random.Random(1)
    timing = Timing(untimed_least=1, untimed_most=1, timed_least=5, timed_most=100, target=0.0001, seconds=10.0)
    for seconds, steps in ((1.0, range(9, 13)), (30.0, range(3, 4))):
        watch, _ = watched(
            clock,
            order_of(1, 1, timing=timing),
            durations=lambda step, s=seconds: Durations(0, 0, 0, s * chance.uniform(0.9, 1.1), 0, 0),
        )
        assert len(watch.steps) in steps


def test_a_probe_that_cannot_reach_the_best_ends_itself_after_three_steps(clock: Clock) -> None:
    hopeless, _ = watched(clock, order_of(4, 1, best_so_far=Interval(100.0, 99.0, 101.0)))
    assert (hopeless.ended_early, len(hopeless.steps)) == (True, 3)
    # 4 samples in 4.25 s: the best so far is no faster, within its interval.
    rival, _ = watched(clock, order_of(4, 1, best_so_far=Interval(1.0, 0.9, 1.1)))
    assert (rival.ended_early, len(rival.steps)) == (False, 5)


def test_the_bar_is_held_against_the_composed_speed(clock: Clock) -> None:
    # Three of 60 micro-steps: 9.75 + 57 x (2 + 0.5) = 152.25 s for 240 samples = 1.58 a second; run alone 1.23.
    watch, _ = watched(clock, order_of(4, 60, best_so_far=Interval(1.5, 1.45, 1.55)))
    assert not watch.ended_early
    watch, _ = watched(clock, order_of(4, 60, best_so_far=Interval(1.7, 1.65, 1.75)))
    assert watch.ended_early


# What it sees ---------------------------------------------------------------------------------------------------


def test_another_batch_than_asked_is_misconfigured(clock: Clock) -> None:
    order = order_of(4, 3)
    watch, trainer = Stopwatch(order), SimulatedTrainer(clock, order, batch_size=8)
    watch.attach(trainer)
    with pytest.raises(Misconfigured, match="a step took 24 samples instead of 12"):
        trainer.train()
    assert watch.settings["micro_batch_size"] == 8


def test_a_callers_own_packed_batches_count_as_asked(clock: Clock) -> None:
    callers = Workload(name="model_init", task="custom", user_objects=True)
    watch, _ = watched(clock, order_of(4, 3, workload=callers), batch_size=1, tokens=4096)
    assert {step.samples for step in watch.steps} == {12}
    assert {step.tokens for step in watch.steps} == {3 * 4096}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_loss_that_is_not_finite_is_never_forgotten(clock: Clock, bad: float) -> None:
    watch, _ = watched(clock, order_of(4, 3), loss=lambda step: bad if step == 1 else 1.0)
    assert not watch.finite
    good, _ = watched(clock, order_of(4, 3))
    assert good.finite


def test_the_stage_follows_the_training(clock: Clock) -> None:
    order = order_of(1, 2)
    watch, trainer = Stopwatch(order), SimulatedTrainer(clock, order)
    seen = [watch.stage]

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            seen.append(f"{name}: {watch.stage}")
            return call(*args)

        return noted

    trainer.get_batch_samples = noting("fetch", trainer.get_batch_samples)  # type: ignore[method-assign]
    trainer.training_step = noting("step", trainer.training_step)  # type: ignore[method-assign]
    trainer.accelerator.backward = noting("backward", trainer.accelerator.backward)
    watch.attach(trainer)
    trainer.train(most=1)
    assert seen == [
        "build",
        "fetch: data",
        "step: forward",
        "backward: backward",
        "step: forward",
        "backward: backward",
    ]
    assert watch.stage == "data"


def test_foreign_work_on_the_cores_is_seen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    used = {"machine": 100.0, "ours": 40.0}
    monkeypatch.setattr(stopwatch, "_machine_cpu_seconds", lambda: used["machine"])
    monkeypatch.setattr(stopwatch, "_session_cpu_seconds", lambda: used["ours"])
    busy = Busyness()
    assert busy.foreign_cores() == 0.0
    busy.start()
    clock.sleep(10.0)
    used["machine"], used["ours"] = 125.0, 55.0
    assert busy.foreign_cores() == pytest.approx(1.0)


# The interval ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_interval_holds_the_speed_and_narrows_with_steps(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    widths = []
    for count in (5, 50):
        timing = Timing(untimed_least=1, untimed_most=1, timed_least=count, timed_most=count, seconds=1e9, target=0.0)
        watch, _ = watched(
            clock,
            order_of(8, 2, timing=timing),
            durations=lambda step: Durations(0.0, 1.0, 0.0, chance.gauss(2.0, 0.1), 0.0, 0.0),
        )
        speed = measurement_of(watch).samples_per_second
        assert speed is not None
        assert 0 < speed.low <= speed <= speed.high
        widths.append(speed.relative_width)
    assert widths[1] < widths[0] * 1.5
    assert widths[1] < 0.05
