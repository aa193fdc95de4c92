"""The stopwatch against a clock that the test moves: every sample, token and second of a step is counted once."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.core import Configuration, Measurement, Outcome, Step, Workload
from autotune.probe.order import CUDA_CONFIRMATION, CUDA_PROBE, Order, Timing
from autotune.probe.train import timer
from autotune.probe.train.read_back import Misconfigured
from autotune.probe.train.timer import Stopwatch
from autotune.probe.train.worst_batch import WORST_STEPS, WorstBatch
from tests.makers import cpu

SEEDS = range(10)
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
    monkeypatch.setattr(timer, "time", clock)
    return clock


@dataclass
class Memory:
    """Notes which stages it was told of."""

    entered: list[str] = field(default_factory=list)

    def enter(self, stage: str) -> None:
        self.entered.append(stage)


@dataclass
class Durations:
    """How long each part of a simulated step takes, seconds.

    wait: for one micro-batch. first, middle, last: a micro-step, a third of it forward and two thirds backward.
    optimizer: clipping and the optimizer's step. rest: what the Trainer does before the first micro-step and after the
    optimizer, half each. between: what it does after every micro-step.
    """

    wait: float = 0.5
    first: float = 3.0
    middle: float = 2.25
    last: float = 2.4
    optimizer: float = 1.0
    rest: float = 0.25
    between: float = 0.0

    def micro_step(self, place: int, run: int) -> float:
        return self.last if place == run - 1 else self.middle if place else self.first

    def whole(self, run: int) -> float:
        """Seconds of a step of so many micro-steps."""
        micro_steps = sum(self.micro_step(place, run) + self.between for place in range(run))
        return self.wait * run + micro_steps + self.optimizer + self.rest


@dataclass
class SimulatedTrainer:
    """Calls a stopwatch as the Trainer does, in the Trainer's order, while the test's clock runs."""

    clock: Clock
    order: Order
    durations: Callable[[int], Durations] = lambda step: Durations()
    tokens: int = 0
    padding: int = 0
    batch_size: int | None = None
    loss: Callable[[int], float] = lambda step: 1.0
    skipped: Callable[[int], bool] = lambda step: False
    model: Any = field(default_factory=lambda: torch.nn.Linear(2, 2))
    control: Any = field(default_factory=lambda: SimpleNamespace(should_training_stop=False))
    seen: list[Any] = field(default_factory=list)
    goes_back_itself: bool = False
    step: int = 0

    def __post_init__(self) -> None:
        self.size = self.batch_size or self.order.configuration.micro_batch_size
        loader = SimpleNamespace(total_batch_size=self.order.configuration.micro_batch_size)
        self.callback_handler = SimpleNamespace(train_dataloader=loader)
        self.args = SimpleNamespace(world_size=1)
        self.accelerator = SimpleNamespace(backward=self.backward, optimizer_step_was_skipped=False)

    def add_callback(self, callback: Any) -> None:
        self.callback = callback

    def batches(self) -> Iterator[Any]:
        while True:
            batch = {"labels": torch.ones(self.size)}
            if self.tokens:
                ids = torch.ones(self.size, self.tokens, dtype=torch.int64)
                mask = torch.ones_like(ids)
                mask[:, self.tokens - self.padding :] = 0
                batch = {"input_ids": ids, "attention_mask": mask} | batch
            yield batch

    def get_batch_samples(self, batches: Iterator[Any], number: int, device: Any) -> tuple[list[Any], int]:
        self.clock.sleep(self.durations(self.step).wait * number)
        return [next(batches) for _ in range(number)], number

    def training_step(self, inputs: Any, seconds: float) -> torch.Tensor:
        self.clock.sleep(seconds / 3)
        if self.goes_back_itself:
            self.backward(seconds)
        else:
            self.accelerator.backward(seconds)
        return torch.tensor(self.loss(self.step))

    def backward(self, seconds: float) -> None:
        self.clock.sleep(seconds * 2 / 3)

    def train(self, most: int = 1000) -> None:
        run = self.order.accumulation_steps_run
        self.callback.on_train_begin(None, None, self.control)
        batches = self.batches()
        while not self.control.should_training_stop and self.step < most:
            took = self.durations(self.step)
            fetched, _ = self.get_batch_samples(batches, run, "cpu")
            self.seen.append(fetched)
            self.clock.sleep(took.rest / 2)
            for place, inputs in enumerate(fetched):
                self.training_step(inputs, took.micro_step(place, run))
                self.clock.sleep(took.between)
            self.clock.sleep(took.optimizer)
            self.accelerator.optimizer_step_was_skipped = self.skipped(self.step)
            self.callback.on_optimizer_step(None, None, self.control)
            self.clock.sleep(took.rest / 2)
            self.callback.on_step_end(None, SimpleNamespace(global_step=self.step + 1), self.control)
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
            "environment": cpu(),
            "timing": FIXED,
            **fields,
        }
    )


def watched(
    clock: Clock, order: Order, worst: WorstBatch | None = None, **simulated: Any
) -> tuple[Stopwatch, SimulatedTrainer]:
    watch, trainer = Stopwatch(order, Memory()), SimulatedTrainer(clock, order, **simulated)  # type: ignore[arg-type]
    watch.attach(trainer, worst)
    trainer.train()
    return watch, trainer


def steps_of(clock: Clock, durations: Durations, run: int, **simulated: Any) -> list[Step]:
    return watched(clock, order_of(4, run, run=run), durations=lambda step: durations, **simulated)[0].steps


def measurement_of(watch: Stopwatch) -> Measurement:
    configuration = watch.order.configuration
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
    real = chance.randint(0, tokens)
    watch, _ = watched(clock, order_of(micro, accumulation, ranks), tokens=tokens, padding=tokens - real)
    measurement = measurement_of(watch)
    run = min(accumulation, 3)
    counts = {(step.samples, step.tokens, step.non_padding_tokens) for step in watch.steps}
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
def test_a_composed_step_is_the_step_that_runs_every_micro_step(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    micro, accumulation, ranks = chance.randint(1, 64), chance.randint(3, 64), chance.randint(1, 8)
    durations = Durations(*(chance.uniform(0.001, 5.0) for _ in range(7)))
    told: dict[str, Any] = {"durations": lambda step: durations, "tokens": 5, "padding": 2}
    short, _ = watched(clock, order_of(micro, accumulation, ranks), **told)
    full, _ = watched(clock, order_of(micro, accumulation, ranks, run=accumulation), **told)
    for composed, run in zip(measurement_of(short).composed_steps, full.steps, strict=True):
        assert run.seconds == pytest.approx(durations.whole(accumulation))
        for part in ("seconds", "data_wait_s", "forward_s", "backward_s", "optimizer_s", "overhead_s"):
            assert getattr(composed, part) == pytest.approx(getattr(run, part)), part
        for counted in ("samples", "tokens", "non_padding_tokens"):
            assert getattr(composed, counted) == getattr(run, counted)
    speeds = measurement_of(short).samples_per_second, measurement_of(full).samples_per_second
    assert float(speeds[0] or 0) == pytest.approx(float(speeds[1] or 1))


# Parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_every_part_of_a_step_comes_out_as_it_was_put_in(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    run = chance.randint(1, 6)
    took = Durations(*(chance.uniform(0.001, 5.0) for _ in range(7)))
    micro_steps = [took.micro_step(place, run) for place in range(run)]
    middle = took.middle if run > 2 else 0.0
    for step in steps_of(clock, took, run):
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


def test_a_trainer_that_goes_back_in_its_own_way_counts_as_going_forward_only(clock: Clock) -> None:
    took = Durations()
    for step, usual in zip(steps_of(clock, took, 3, goes_back_itself=True), steps_of(clock, took, 3), strict=True):
        assert step.forward_s == pytest.approx(usual.forward_s + usual.backward_s)
        assert (step.backward_s, step.middle_backward_s) == (0.0, 0.0)
        for part in ("seconds", "data_wait_s", "optimizer_s", "overhead_s", "first_s", "middle_s", "last_s"):
            assert getattr(step, part) == pytest.approx(getattr(usual, part)), part


def test_steps_add_up_to_all_the_time_there_was(clock: Clock) -> None:
    chance = random.Random(0)
    times = [Durations(*(chance.uniform(0.1, 2.0) for _ in range(7))) for _ in range(7)]
    begun = clock.now
    watch, _ = watched(clock, order_of(2, 3), durations=lambda step: times[min(step, 6)])
    assert sum(watch.untimed) + sum(step.seconds for step in watch.steps) == pytest.approx(clock.now - begun)


def test_reading_the_surroundings_is_no_part_of_a_step(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self, environment: Any) -> None:
            self.read: list[str] = []

        def start(self) -> None:
            self.read.append("start")
            clock.sleep(100.0)

        def stop(self) -> None:
            self.read.append("stop")
            clock.sleep(100.0)

    monkeypatch.setattr(timer, "MachineMonitor", Slow)
    watch, _ = watched(clock, order_of(4, 1))
    assert [step.seconds for step in watch.steps] == pytest.approx([Durations().whole(1)] * 5)
    assert watch.surroundings.read == ["start", "stop"]  # type: ignore[attr-defined]


# The worst batch ------------------------------------------------------------------------------------------------


def longest(samples: int, tokens: int = 50) -> WorstBatch:
    ids = torch.ones(samples, tokens, dtype=torch.int64)
    return WorstBatch(({"input_ids": ids, "labels": ids},), f"{samples} x sample 7, the longest of the data")


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7])
def test_the_first_two_steps_are_on_the_worst_batch_and_are_neither_timed_nor_counted(
    clock: Clock, accumulation: int
) -> None:
    order = order_of(4, accumulation)
    watch, trainer = watched(
        clock, order, longest(4), tokens=16, durations=lambda step: Durations(first=90.0 if step < 2 else 3.0)
    )
    usual, _ = watched(clock, order, tokens=16)
    assert [{len(batch["input_ids"][0]) for batch in step} for step in trainer.seen[:3]] == [{50}, {50}, {16}]
    assert WORST_STEPS == 2
    assert [len(step) for step in trainer.seen] == [order.accumulation_steps_run] * (2 + 2 + 5)
    assert [step.tokens for step in watch.steps] == [step.tokens for step in usual.steps]
    assert [step.seconds for step in watch.steps] == pytest.approx([step.seconds for step in usual.steps])
    assert len(watch.untimed) == len(usual.untimed) == 2
    assert (watch.untimed_steps, usual.untimed_steps) == (4, 2)
    assert watch.micro_batch_bytes == 2 * 4 * 50 * 8
    assert (watch.worst_batch, usual.worst_batch) == ("4 x sample 7, the longest of the data", "")


@pytest.mark.parametrize("worst", [None, longest(4)], ids=["all alike", "worst"])
def test_memory_is_told_each_stage_of_the_first_two_steps_and_of_no_later_one(
    clock: Clock, worst: WorstBatch | None
) -> None:
    watch, _ = watched(clock, order_of(4, 2), worst)
    micro_step = ["forward", "backward", "optimizer"]
    step = ["data", *micro_step, *micro_step]
    assert watch._memory.entered == [*step, *step, "data", ""]  # type: ignore[union-attr]


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
    clock: Clock, ended: bool, accumulation: int, fields: dict[str, Any]
) -> None:
    watch, _ = watched(clock, order_of(4, accumulation, **fields), tokens=100)
    assert (watch.ended_early, len(watch.steps)) == (ended, 3 if ended else 5)


def test_another_batch_than_asked_is_misconfigured(clock: Clock) -> None:
    order = order_of(4, 3)
    watch, trainer = Stopwatch(order, Memory()), SimulatedTrainer(clock, order, batch_size=8)  # type: ignore[arg-type]
    watch.attach(trainer)
    with pytest.raises(Misconfigured, match="a step took 24 samples instead of 12") as caught:
        trainer.train()
    assert caught.value.settings["micro_batch_size"] == 8


def test_a_callers_own_packed_batches_count_as_asked(clock: Clock) -> None:
    callers = Workload(name="model_init", task="custom", user_objects=True)
    watch, _ = watched(clock, order_of(4, 3, workload=callers), batch_size=1, tokens=4096)
    assert {step.samples for step in watch.steps} == {12}
    assert {step.tokens for step in watch.steps} == {3 * 4096}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_loss_that_is_not_finite_is_never_forgotten(clock: Clock, bad: float) -> None:
    watch, _ = watched(clock, order_of(4, 3), loss=lambda step: bad if step == 1 else 1.0)
    assert watch.failure().where == "forward"
    good, _ = watched(clock, order_of(4, 3))
    assert good.failure() is None


@pytest.mark.parametrize(("skipped", "reason"), [({0, 5}, ""), (set(range(20)), "fp16 overflowed: 5 of 5 timed steps")])
def test_skipped_steps_are_counted_and_mostly_skipped_ones_have_no_speed(
    clock: Clock, skipped: set[int], reason: str
) -> None:
    watch, _ = watched(clock, order_of(4, 3), skipped=lambda step: step in skipped)
    assert watch.skipped_steps == (2 if len(skipped) == 2 else 7)
    failure = watch.failure()
    assert (failure.reason if failure else "").startswith(reason)
    assert bool(failure) == bool(reason)


def test_the_stage_follows_the_training(clock: Clock) -> None:
    order = order_of(1, 2)
    watch, trainer = Stopwatch(order, Memory()), SimulatedTrainer(clock, order)  # type: ignore[arg-type]
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


# On a GPU -------------------------------------------------------------------------------------------------------


@dataclass
class LateDevice:
    """A device that is some marks behind the host, as torch.cuda shows it; waiting for it takes the host there."""

    clock: Clock
    behind: int = 0
    marks: int = 0
    passed: int = 0
    waited: list[int] = field(default_factory=list)

    def event(self, enable_timing: bool) -> "LateEvent":
        return LateEvent(self)

    def synchronize(self) -> None:
        self.passed = self.marks
        self.waited.append(self.marks)


@dataclass
class LateEvent:
    """A mark in its stream that is passed once the device has come that far."""

    device: LateDevice
    number: int = 0
    at: float = 0.0

    def record(self) -> None:
        self.device.marks += 1
        self.number, self.at = self.device.marks, self.device.clock.now

    def query(self) -> bool:
        return self.number <= max(self.device.passed, self.device.marks - self.device.behind)

    def elapsed_time(self, end: "LateEvent") -> float:
        assert self.query(), "torch raises for events that the device has not passed"
        assert end.query(), "torch raises for events that the device has not passed"
        return 1000 * (end.at - self.at)


def on_late_device(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, behind: int, timing: Timing, seconds: Callable[[int], float]
) -> tuple[Stopwatch, LateDevice]:
    device = LateDevice(clock, behind)
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    order = order_of(4, 2, timing=timing, environment=replace(cpu(), device="cuda:0"))
    watch, trainer = watched(clock, order, durations=lambda step: Durations(0, 0, 0, 0, seconds(step), 0))
    trainer.callback.on_train_end(None, None, trainer.control)
    return watch, device


@pytest.mark.parametrize("behind", [0, 1, 9, 25])
def test_a_device_is_waited_for_only_where_the_timed_steps_begin_and_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    timing = replace(FIXED, timed_least=6, timed_most=6)
    watch, device = on_late_device(clock, monkeypatch, behind, timing, lambda step: 1.0 + step / 100)
    marks_a_step = 8 + 2
    untimed = timing.untimed_least
    ends = [1 + marks_a_step * (step + 1) for step in range(untimed)]  # one mark before the first step
    begin, *waits = device.waited[len(ends) - 1 :]
    assert device.waited[: len(ends)] == ends
    assert all(mark > begin + marks_a_step * timing.timed_least for mark in waits)
    assert len(watch.steps) >= 6
    expected = [1.0 + (untimed + place) / 100 for place in range(len(watch.steps))]
    assert [step.seconds for step in watch.steps] == pytest.approx(expected)


def test_short_steps_go_on_until_their_seconds_are_over(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, _ = on_late_device(clock, monkeypatch, 9, CUDA_PROBE, lambda step: 0.05)
    assert sum(watch.untimed[1:]) == pytest.approx(CUDA_PROBE.untimed_seconds, abs=0.06)
    assert sum(step.seconds for step in watch.steps) == pytest.approx(CUDA_PROBE.timed_seconds_least, abs=0.12)
    longer, _ = on_late_device(clock, monkeypatch, 9, CUDA_CONFIRMATION, lambda step: 0.05)
    assert sum(longer.untimed[1:]) == pytest.approx(CUDA_CONFIRMATION.untimed_seconds, abs=0.06)
    assert sum(step.seconds for step in longer.steps) == pytest.approx(CUDA_CONFIRMATION.timed_seconds_least, abs=0.12)
