"""Simulated machine: a host and a device clock for each rank under the Trainer loop that probes time.

host    |load|copy|launch ... |NaN check waits|launch optimizer|on_step_end|load|copy waits ...
device       idle  |forward, backward .........|idle|optimizer ................|idle

All clocks are virtual: nothing waits, and a run takes milliseconds. Ranks are threads of which one runs at a time, always the one
whose host's clock is behind, so each run is the same.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch

from autotune.core import Configuration, Measurement, Outcome, Workload
from autotune.probe.device.clock import HostClock
from autotune.probe.order import Order, Timing
from autotune.probe.process.ranks import LastStep
from autotune.probe.runner import waits_as_composed
from autotune.probe.train.timer import Stopwatch
from autotune.probe.train.worst_batch import WorstBatch
from tests.makers import cpu


class Deadlock(Exception):
    """Every rank that has not ended waits for another one."""


class Stopped(BaseException):
    """Another rank failed."""


# Host and device ------------------------------------------------------------------------------------------------


@dataclass
class Queued:
    """A point in a device's queue. issued: the host's time. at: when the device passes it, None while that is not known."""

    issued: float
    at: float | None = None
    work: float = 0.0
    ends_after: float = 0.0
    exchange: "Exchange | None" = None


@dataclass
class Exchange:
    """A collective operation: it begins when the last device gets there. ready: rank -> when its device got there."""

    seconds: float
    ready: dict[int, float] = field(default_factory=dict)


class Rank(HostClock):
    """A process with its device: one stream, in which operations run in order. It is the clock that a timer is given.

    host: its time. free: when the device has done what it knows the end of. speed: time -> the device's speed then, as a share of
    the settled one.
    """

    def __init__(self, number: int, machine: "Machine") -> None:
        self.number, self.machine, self.speed = number, machine, machine.speed
        self.host = self.free = 0.0
        self.queue: deque[Queued] = deque()
        self.exchanges = 0
        self.waits_for: Queued | None = None
        self.ended = False
        self.turn = threading.Semaphore(0)
        self.synchronized: list[float] = []

    # What a training does

    def sleep(self, seconds: float) -> None:
        """Work of the host."""
        self.host += seconds

    def launch(self, work: float, seconds: float = 0.0) -> None:
        """Queue kernels that take the device so many seconds at its settled speed; launching them takes the host `seconds`."""
        if self.machine.on_cpu:
            self.host += work
            return
        self.host += seconds
        self._enqueue(Queued(self.host - seconds, work=work, ends_after=self.host))

    def copy(self, seconds: float, blocking: bool = True) -> None:
        """Copy from the host to the device; a blocking one waits for everything queued before, see `memcpy_and_sync`."""
        if blocking:
            self.item()
            self.sleep(seconds)
        else:
            self.launch(seconds)

    def item(self) -> None:
        """Read a value of the device."""
        self._wait(self._point())

    def exchange(self, seconds: float) -> None:
        """Queue a collective operation of all ranks; only on a CPU the host waits for it."""
        point = self._point(self.machine.exchange(self.exchanges, seconds))
        self.exchanges += 1
        if self.machine.on_cpu:
            self._wait(point)

    def give_way(self) -> None:
        """Let the ranks that are behind catch up: what they did before this moment is done."""
        self.machine.switch(self)

    # What a timer does

    def now(self) -> float:
        return self.host

    def mark(self) -> Queued:
        return self._point()

    def between(self, begun: Queued, ended: Queued) -> float:
        assert self.passed(begun), "torch raises for events that the device has not passed"
        assert self.passed(ended), "torch raises for events that the device has not passed"
        assert begun.at is not None
        assert ended.at is not None
        return ended.at - begun.at

    def passed(self, mark: Queued) -> bool:
        if mark.at is None:
            self.give_way()
        return mark.at is not None and mark.at <= self.host

    def wait_for(self, mark: Queued) -> None:
        self._wait(mark)

    def synchronize(self) -> None:
        self.item()
        self.synchronized.append(self.host)

    # How

    def _point(self, exchange: Exchange | None = None) -> Queued:
        point = Queued(self.host, exchange=exchange)
        self._enqueue(point)
        return point

    def _enqueue(self, point: Queued) -> None:
        self.queue.append(point)
        if self.advance():
            while any(rank.advance() for rank in self.machine.ranks):
                pass

    def advance(self) -> bool:
        """Run the queue as far as its times are known; whether an exchange ended."""
        ended = False
        while self.queue:
            point = self.queue[0]
            begins = max(self.free, point.issued)
            if point.exchange is not None:
                ready = point.exchange.ready
                ready[self.number] = begins
                if len(ready) < len(self.machine.ranks):
                    return ended
                begins, ended = max(ready.values()) + point.exchange.seconds, True
            self.free = point.at = max(begins + point.work / self.speed(begins), point.ends_after)
            self.queue.popleft()
        return ended

    def _wait(self, point: Queued) -> None:
        if point.at is None:
            self.waits_for = point
            self.machine.switch(self)
            self.waits_for = None
        assert point.at is not None
        self.host = max(self.host, point.at)


class RunsAhead(Rank):
    """A host that does not wait for the end of the step before."""

    def wait_for(self, mark: Queued) -> None:
        pass


class Machine:
    """Ranks whose devices exchange gradients. on_cpu: a host does its device's work itself. speed: of each device, see `Rank`."""

    def __init__(
        self,
        ranks: int = 1,
        on_cpu: bool = False,
        speed: Callable[[float], float] = lambda now: 1.0,
        kind: type[Rank] = Rank,
    ) -> None:
        self.on_cpu, self.speed = on_cpu, speed
        self.ranks = [kind(number, self) for number in range(ranks)]
        self._exchanges: list[Exchange] = []
        self._error: BaseException | None = None

    def run(self, work: Callable[[Rank], Any]) -> list[Any]:
        """Let all ranks do this work; raises what one of them raises, and Deadlock."""
        results: dict[int, Any] = {}
        if len(self.ranks) == 1:
            return [work(self.ranks[0])]

        def run(rank: Rank) -> None:
            rank.turn.acquire()
            try:
                if self._error is None:
                    results[rank.number] = work(rank)
            except Stopped:
                pass
            except BaseException as error:
                self._error = self._error or error
            rank.ended = True
            self._next()

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in self.ranks]
        for thread in threads:
            thread.start()
        self.ranks[0].turn.release()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return [results[rank.number] for rank in self.ranks]

    def exchange(self, place: int, seconds: float) -> Exchange:
        """The so many'th exchange, the same for all ranks."""
        while len(self._exchanges) <= place:
            self._exchanges.append(Exchange(seconds))
        return self._exchanges[place]

    def switch(self, rank: Rank) -> None:
        """Go on with the rank whose host is behind; return when that is this one."""
        if self._next(rank):
            return
        rank.turn.acquire()
        if self._error is not None:
            raise Stopped

    def _next(self, current: Rank | None = None) -> bool:
        living = [rank for rank in self.ranks if not rank.ended]
        able = [rank for rank in living if rank.waits_for is None or rank.waits_for.at is not None]
        if self._error is None and living and not able:
            self._error = Deadlock(f"ranks {', '.join(str(rank.number) for rank in living)} wait for ever")
            if current is not None:
                raise self._error
        if self._error is not None:
            for rank in living:
                rank.turn.release()
            return False
        if not able:
            return False
        chosen = min(
            able, key=lambda rank: (max(rank.host, (rank.waits_for and rank.waits_for.at) or 0.0), rank.number)
        )
        if chosen is current:
            return True
        chosen.turn.release()
        return False


# Loaders --------------------------------------------------------------------------------------------------------


class Loader:
    """Makes each batch in the training process. load: seconds of a batch, by its number."""

    def __init__(self, rank: Rank, load: Callable[[int], float]) -> None:
        self.rank, self.load = rank, load
        self.number = 0

    def __next__(self) -> None:
        self.take(self.number)
        self.number += 1

    def take(self, number: int) -> None:
        self.rank.sleep(self.load(number))


class Workers(Loader):
    """Workers of torch's DataLoader: each makes the batches of its turn, `ahead` of the training altogether."""

    def __init__(self, rank: Rank, load: Callable[[int], float], workers: int, prefetch: int = 2) -> None:
        super().__init__(rank, load)
        self.free, self.done = [rank.host] * workers, list[float]()
        for _ in range(workers * prefetch):
            self.ask()

    def ask(self) -> None:
        number = len(self.done)
        worker = number % len(self.free)
        self.free[worker] = max(self.free[worker], self.rank.host) + self.load(number)
        self.done.append(self.free[worker])

    def take(self, number: int) -> None:
        self.rank.host = max(self.rank.host, self.done[number])
        self.ask()


# The Trainer loop -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Durations:
    """How long each part of a simulated step takes, seconds.

    wait: the loader's, for one micro-batch. first, middle, last: the device's for a micro-step, a third of it forward and two
    thirds backward. optimizer: the device's for clipping and the optimizer's step. rest: what the Trainer does before the first
    micro-step and after the optimizer, half each. between: what it does after every micro-step.

    Not on a CPU: copy: of one micro-batch to the device. launch, optimizer_launch: the host's for launching the kernels of a
    micro-step and of clipping and optimizer. Of several ranks: exchange: of gradients.
    """

    wait: float = 0.5
    first: float = 3.0
    middle: float = 2.25
    last: float = 2.4
    optimizer: float = 1.0
    rest: float = 0.25
    between: float = 0.0
    copy: float = 0.0
    launch: float = 0.0
    optimizer_launch: float = 0.0
    exchange: float = 0.0

    def micro_step(self, place: int, run: int) -> float:
        return self.last if place == run - 1 else self.middle if place else self.first

    def whole(self, run: int) -> float:
        """Seconds of a step of so many micro-steps on a CPU."""
        micro_steps = sum(self.micro_step(place, run) + self.between for place in range(run))
        return self.wait * run + micro_steps + self.optimizer + self.rest


@dataclass
class SimulatedTrainer:
    """Calls a timer as the Trainer does, in the Trainer's and accelerate's order, while the clocks of its rank run.

    workers: of the loader. nan_filter: `logging_nan_inf_filter`. blocking: copies to the device, accelerate's default.
    fetch_s: seconds that each step's fetching took by the loader and the copies alone.
    """

    rank: Rank
    order: Order
    durations: Callable[[int], Durations] = lambda step: Durations()
    workers: int = 0
    nan_filter: bool = True
    blocking: bool = True
    tokens: int = 0
    padding: int = 0
    batch_size: int | None = None
    loss: Callable[[int], float] = lambda step: 1.0
    skipped: Callable[[int], bool] = lambda step: False
    model: Any = field(default_factory=lambda: torch.nn.Linear(2, 2))
    control: Any = field(default_factory=lambda: SimpleNamespace(should_training_stop=False))
    seen: list[Any] = field(default_factory=list)
    fetch_s: list[float] = field(default_factory=list)
    goes_back_itself: bool = False
    step: int = 0
    callback: Any = None

    def __post_init__(self) -> None:
        self.size = self.batch_size or self.order.configuration.micro_batch_size
        loader = SimpleNamespace(total_batch_size=self.order.configuration.micro_batch_size)
        self.callback_handler = SimpleNamespace(train_dataloader=loader)
        self.args = SimpleNamespace(world_size=1, dataloader_num_workers=self.workers)
        self.accelerator = SimpleNamespace(
            backward=self.backward,
            optimizer_step_was_skipped=False,
            dataloader_config=SimpleNamespace(non_blocking=not self.blocking),
        )

    def batches(self) -> Iterator[Any]:
        """As accelerate's loader: copies a batch and loads the next one before it gives the first."""

        def load(number: int) -> float:
            return self.durations(self.step).wait

        loader = Workers(self.rank, load, self.workers) if self.workers else Loader(self.rank, load)
        next(loader)
        while True:
            copy = self.durations(self.step).copy
            self.rank.copy(copy, self.blocking)
            begun = self.rank.host
            next(loader)
            self.fetch_s[-1] += copy + self.rank.host - begun
            batch = {"labels": torch.ones(self.size)}
            if self.tokens:
                ids = torch.ones(self.size, self.tokens, dtype=torch.int64)
                mask = torch.ones_like(ids)
                mask[:, self.tokens - self.padding :] = 0
                batch = {"input_ids": ids, "attention_mask": mask} | batch
            yield batch

    def get_batch_samples(self, batches: Iterator[Any], number: int, device: Any) -> tuple[list[Any], int]:
        self.fetch_s.append(0.0)
        fetched = [next(batches) for _ in range(number)]
        if len(self.rank.machine.ranks) > 1:  # average_tokens_across_devices
            self.rank.exchange(0.0)
        return fetched, number

    def training_step(self, inputs: Any, seconds: float, launch: float, exchange: float | None) -> torch.Tensor:
        self.rank.launch(seconds / 3, launch / 3)
        if self.goes_back_itself:
            self.backward(seconds, launch, exchange)
        else:
            self.accelerator.backward(seconds, launch, exchange)
        return torch.tensor(self.loss(self.step))

    def backward(self, seconds: float, launch: float, exchange: float | None) -> None:
        self.rank.launch(seconds * 2 / 3, launch * 2 / 3)
        if exchange is not None and len(self.rank.machine.ranks) > 1:
            self.rank.exchange(exchange)

    def train(self, most: int = 1000) -> None:
        run = self.order.accumulation_steps_run
        self.callback.on_train_begin(None, None, self.control)
        batches = self.batches()
        while not self.control.should_training_stop and self.step < most:
            took = self.durations(self.step)
            fetched, _ = self.get_batch_samples(batches, run, "cpu")
            self.seen.append(fetched)
            self.rank.sleep(took.rest / 2)
            for place, inputs in enumerate(fetched):
                exchange = took.exchange if place == run - 1 else None
                self.training_step(inputs, took.micro_step(place, run), took.launch, exchange)
                if self.nan_filter:
                    self.rank.item()
                self.rank.sleep(took.between)
            self.rank.launch(took.optimizer, took.optimizer_launch)
            self.accelerator.optimizer_step_was_skipped = self.skipped(self.step)
            self.callback.on_optimizer_step(None, None, self.control)
            self.rank.sleep(took.rest / 2)
            self.callback.on_step_end(None, SimpleNamespace(global_step=self.step + 1), self.control)
            self.step += 1
        self.rank.item()  # the sum of the losses
        self.callback.on_train_end(None, None, self.control)


# Timers ---------------------------------------------------------------------------------------------------------


@dataclass
class Memory:
    """Notes which stages it was told of."""

    entered: list[str] = field(default_factory=list)

    def enter(self, stage: str) -> None:
        self.entered.append(stage)


SETTLED_MHZ = 1700
"""A card's clock at its settled speed."""


@dataclass
class FakeMonitor:
    """Reads nothing but the card's clock, and takes the host so many seconds for it; read: what was called."""

    rank: Rank
    seconds: float = 0.0
    read: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.read.append("start")
        self.rank.sleep(self.seconds)

    def stop(self) -> None:
        self.read.append("stop")
        self.rank.sleep(self.seconds)

    def sm_clock_mhz(self) -> float | None:
        return None if self.rank.machine.on_cpu else SETTLED_MHZ * self.rank.speed(self.rank.host)


class Meeting(LastStep):
    """The file in which ranks agree, written and read in the order of the hosts' clocks."""

    def __init__(self, rank: Rank, folder: Path | None) -> None:
        super().__init__(rank.number, folder)
        self.rank = rank

    def announce(self, step: int) -> bool:
        self.rank.give_way()
        return super().announce(step)

    def reached(self, step: int) -> bool:
        self.rank.give_way()
        return super().reached(step)


FIXED = Timing(untimed_least=2, untimed_most=2, timed_least=5, timed_most=5, target=0.0, seconds=1e9)


def order_of(micro: int, accumulation: int, ranks: int = 1, run: int | None = None, **fields: Any) -> Order:
    """An order of three micro-steps of the accumulation, or of `run`."""
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


def stopwatch(
    rank: Rank, order: Order, meeting: Path | None = None, kind: type[Stopwatch] = Stopwatch, reading_s: float = 0.0
) -> Stopwatch:
    """The stopwatch of a rank. reading_s: the host's seconds for reading the system's state."""
    monitor: Any = FakeMonitor(rank, reading_s)
    memory: Any = Memory()
    return kind(order, memory, rank, monitor, Meeting(rank, meeting))  # type: ignore[arg-type]


def watched(
    order: Order,
    worst: WorstBatch | None = None,
    *,
    machine: Machine | None = None,
    kind: type[Stopwatch] = Stopwatch,
    reading_s: float = 0.0,
    **simulated: Any,
) -> tuple[Stopwatch, SimulatedTrainer]:
    """The first rank's stopwatch and Trainer after the training of an order; on a CPU, unless a machine is given.

    reading_s: the first rank's, see `stopwatch`."""
    machine = machine or Machine(on_cpu=True)

    def work(rank: Rank) -> tuple[Stopwatch, SimulatedTrainer]:
        meeting = Path(folder) if len(machine.ranks) > 1 else None
        watch = stopwatch(rank, order, meeting, kind, 0.0 if rank.number else reading_s)
        trainer = SimulatedTrainer(rank, order, **simulated)
        watch.attach(trainer, worst)
        trainer.callback = watch
        trainer.train()
        return watch, trainer

    with TemporaryDirectory() as folder:
        first: tuple[Stopwatch, SimulatedTrainer] = machine.run(work)[0]
    return first


def measurement_of(watch: Stopwatch) -> Measurement:
    """What the probe of this stopwatch answers."""
    configuration = watch.order.configuration
    return Measurement(
        Outcome.COMPLETED,
        accumulation_steps=configuration.gradient_accumulation_steps,
        accumulation_steps_run=watch.order.accumulation_steps_run,
        data_parallel_size=configuration.data_parallel_size,
        steps=tuple(watch.pace.steps),
        whole_fetch_s=watch.pace.whole_fetch_s,
    )


def last_steps(ranks: int, reading_s: float, nan_filter: bool, blocking: bool, kind: type[Rank] = Rank) -> int:
    """Steps of rank 0, whose host reads its system's state so long before it announces the last one; raises Deadlock."""
    took = on_gpu(0.018, 0.0002)
    _, trainer = watched(
        order_of(1, 2, ranks, run=2),
        machine=Machine(ranks, kind=kind),
        reading_s=reading_s,
        durations=lambda step: took,
        nan_filter=nan_filter,
        blocking=blocking,
    )
    return trainer.step


CURVES: dict[str, Callable[[float], float]] = {
    "boost falls in ten seconds": lambda now: max(1700, 1980 - 28 * now) / 1700,
    "boost falls towards heat": lambda now: (1700 + 280 * math.exp(-now / 3.3)) / 1700,
    "power cap": lambda now: 1980 / 1400 if now < 0.5 else (1400 + 300 * math.exp(-(now - 0.5) / 0.3)) / 1400,
    "hot already": lambda now: 1.0,
}
"""Time in seconds -> a card's clock as a share of the one it settles at: 1980 MHz at first, 1700 in the end; a cap at 1400."""


def clock_share(curve: Callable[[float], float], timing: Timing, micro: float) -> tuple[float, float]:
    """The speed that a probe of this timing reports on such a card, as a share of the settled one, and its untimed seconds.

    micro: seconds of a micro-step, two in a step."""

    def timed(speed: Callable[[float], float]) -> tuple[float, float]:
        order = order_of(1, 2, run=2, timing=timing)
        watch, _ = watched(order, machine=Machine(speed=speed), durations=lambda step: on_gpu(micro))
        return sum(step.seconds for step in watch.pace.steps) / len(watch.pace.steps), sum(watch.pace.untimed)

    seconds, untimed_s = timed(curve)
    return timed(lambda now: 1.0)[0] / seconds, untimed_s


# Composed against whole steps -----------------------------------------------------------------------------------


def on_gpu(micro: float, load: float = 0.0005, **others: float) -> Durations:
    """A GPU's step: seconds of a micro-step, of loading its batch, and others that are not those of a small model's step."""
    fields = {
        "first": micro,
        "middle": 1.02 * micro,
        "last": 1.02 * micro,
        "wait": load,
        "optimizer": 0.006,
        "rest": 0.0004,
    }
    fields |= {"between": 0.0001, "copy": 0.00005, "launch": 0.004, "optimizer_launch": 0.002, "exchange": 0.01}
    return Durations(**fields | others)


@dataclass(frozen=True)
class Compared:
    """Seconds of a step and of its wait for data: true, and as a probe has them. repeated: whether it ran all micro-steps."""

    true_s: float
    true_wait_s: float
    step_s: float
    wait_s: float
    repeated: bool

    @property
    def error(self) -> float:
        """Of a step's seconds, as a share of them."""
        return self.step_s / self.true_s - 1

    @property
    def wait_error(self) -> float:
        """Of the wait for data, as a share of the step."""
        return (self.wait_s - self.true_wait_s) / self.true_s


@dataclass(frozen=True)
class Case:
    """A training on a GPU whose probes run three micro-steps."""

    name: str
    accumulation: int
    durations: Durations
    nan_filter: bool = True
    blocking: bool = True
    workers: int = 0
    ranks: int = 1

    def trained(self, run: int, kind: type[Stopwatch] = Stopwatch) -> tuple[Measurement, SimulatedTrainer]:
        """A probe that runs so many micro-steps, timed by this kind of stopwatch, and its Trainer."""
        watch, trainer = watched(
            order_of(1, self.accumulation, self.ranks, run=run),
            machine=Machine(self.ranks),
            kind=kind,
            durations=lambda step: self.durations,
            nan_filter=self.nan_filter,
            blocking=self.blocking,
            workers=self.workers,
        )
        return measurement_of(watch), trainer

    def compared(
        self,
        kind: type[Stopwatch] = Stopwatch,
        composes: Callable[[Measurement], bool] = waits_as_composed,
    ) -> Compared:
        """A probe as the search makes it, against a training that runs every micro-step.

        composes: whether the probe's speed may be composed, else it runs them all too."""
        whole, trainer = self.trained(self.accumulation)
        probe, _ = self.trained(min(3, self.accumulation), kind)
        repeated = self.accumulation > 3 and not composes(probe)
        if repeated:
            probe, _ = self.trained(self.accumulation, kind)
        fetch_s = fmean(trainer.fetch_s[-len(whole.steps) :])
        seconds = [whole.step_time_s, fetch_s, probe.step_time_s, probe.data_wait_s]
        return Compared(*(each or 0.0 for each in seconds), repeated=repeated)


class HostTimed(Stopwatch):
    """A broken stopwatch: it takes the host's seconds of fetching for a wait for data, whatever the device does meanwhile."""

    def _fetch(self, *args: Any, **kwargs: Any) -> Any:
        begun = self._clock.now()
        fetched = super()._fetch(*args, **kwargs)
        ended = self._clock.now()
        self._marks.fetching, self._marks.fetched = Queued(begun, begun), Queued(ended, ended)
        return fetched
