"""Timer of a running Trainer's steps, which also checks its loss and settings.

get_batch_samples      training_step              training_step ... training_step      clip, optimizer   on_step_end
|---- data wait ----|--- forward | backward ---|--- middle ------|--- last --------------------------|

    steps on the worst batch (memory by stage) --> untimed steps until they settle --> timed steps until they suffice

The timer synchronises with a GPU at the end of each untimed step and of the last timed one. In between the host runs ahead, as
in any training, by one step at most (see `LastStep`): a step is read once the device has finished it. All times but the host's
for reading are the device's own: what overlaps is counted once.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, takewhile
from statistics import fmean
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.core import Interval, Outcome, Step
from autotune.core.failures import Failure
from autotune.core.interval import ratio_interval
from autotune.core.kept import Held
from autotune.core.loss_curves import COMPARED_STEPS
from autotune.core.step import composed_steps
from autotune.probe.device.clock import HostClock
from autotune.probe.device.compile import graphs_compiled
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import STAGE, TrainingOrder
from autotune.probe.process.ranks import LastStep
from autotune.probe.train.adaptive import Decision, decide, settled
from autotune.probe.train.batch_stats import Counted, count
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory
from autotune.probe.train.read_back import ReadBack
from autotune.probe.train.ready import DRAINED, MOST_STARTS, ReadyBatches
from autotune.probe.train.worst_batch import WORST_STEPS, WorstBatch, feed
from autotune.space.settings.micro_batch_size import GENERATION


@dataclass
class Marks:
    """Marks of one step on its clock, see `HostClock`."""

    fetching: Any = None
    fetched: Any = None
    fetches_whole: bool = False
    begun: list[Any] = field(default_factory=list)
    turned: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)
    done: list[Any] = field(default_factory=list)
    stepped: Any = None
    end: Any = None
    counted: Counted = field(default_factory=Counted)
    skipped: bool = False
    loss: torch.Tensor | None = None


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Attaches to a Trainer and stops it when its speed is measured; of several ranks the first decides, for all.

    stage: what is done now (build, data, forward, backward, optimizer), where a failure happens.
    steps: the timed ones so far; skipped_timed_steps: those of them that loss scaling skipped.
    recompiled_graphs: compiled in the timed steps. tokens_per_sample, whole_fetch_s: see `Measurement`. settings: setting ->
    value that the running training shows.
    """

    def __init__(
        self,
        order: TrainingOrder,
        memory: HostMemory | DeviceMemory,
        clock: HostClock,
        monitor: MachineMonitor,
        last_step: LastStep,
    ) -> None:
        self.order = order
        self.stage = "build"
        self._entered = set[str]()
        self.steps: list[Step] = []
        self.untimed: list[float] = []
        self._clocks_mhz: list[float | None] = []
        self.ended_early = False
        self.settings: dict[str, Any] = {}
        self.micro_batch_bytes = 0
        self.tokens_per_sample: float | None = None
        self.skipped_steps = 0
        self.skipped_timed_steps = 0
        self.recompiled_graphs = 0
        self.whole_fetch_s: float | None = None
        self.worst_batch = ""
        self.monitor = monitor
        self._memory = memory
        self._clock = clock
        self._worst: WorstBatch | None = None
        self._steps_watched = 0
        self._finite: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._is_timing = False
        self._timed_s = 0.0
        self._last_step = last_step
        self._decided = False
        self._steps_taken = 0
        self._end_before: Any = None
        self._previous_end: Any = None
        self._first: list[float] = []
        self._graphs = 0
        self._marks = Marks()
        self._contents: list[tuple[float, int]] = []  # rows and values of the micro-batches, of each timed step
        self._before: tuple[list[Step], list[tuple[float, int]]] = [], []  # timed steps that emptied the queue
        self._starts = 0
        self._unread: deque[Marks] = deque()

    def attach(self, trainer: Any, worst: WorstBatch | None = None) -> None:
        """Wrap what the Trainer calls between its callbacks; call before `train()`. worst: trained on first."""
        self.trainer = trainer
        self._worst = worst
        self.worst_batch = worst.origin if worst else ""
        if worst:
            feed(trainer, worst, WORST_STEPS)
        trainer.get_batch_samples = partial(self._fetch, trainer.get_batch_samples)
        trainer.training_step = partial(self._micro_step, trainer.training_step)
        trainer.accelerator.backward = partial(self._backward, trainer.accelerator.backward)
        self._read_back = ReadBack(self.order, trainer)
        copies = getattr(trainer.accelerator, "dataloader_config", None)
        self._loads_meanwhile = bool(trainer.args.dataloader_num_workers or getattr(copies, "non_blocking", False))

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self._ready = ReadyBatches(train_dataloader)
        self._enter("data")
        self._end_before = self._previous_end = self._clock.mark()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._marks.stepped = self._clock.mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        marks, self._marks = self._marks, Marks()
        marks.end = self._clock.mark()
        if marks.loss is not None and len(self._losses) < COMPARED_STEPS and not self._is_on_the_worst():
            self._losses.append(marks.loss)
        marks.skipped = bool(getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False))
        self.skipped_steps += marks.skipped
        if not self._is_timing:
            self._clock.synchronize()
        self._clock.wait_for(self._end_before)
        self._end_before = marks.end
        seconds = 0.0 if self._is_timing else self._step_seconds(marks.end)
        if not self.settings:
            self.settings = self._read_back.settings(self._counted_samples(marks), len(marks.begun))
        before, self._graphs = self._graphs, graphs_compiled()
        self._steps_taken += 1
        if self._last_step.reached(self._steps_taken):
            control.should_training_stop = True
        elif self._decided:
            pass  # all ranks stop together, some steps later
        elif self._is_timing:
            self.recompiled_graphs += self._graphs - before
            self._unread.append(marks)
            self._read_steps()
            if self._enough():
                self._decided, control.should_training_stop = True, self._last_step.announce(self._steps_taken)
        else:
            if marks.fetches_whole:
                self.whole_fetch_s = self._waited(marks)
                seconds -= self.whole_fetch_s  # no other step is like it
            self._first.append(seconds)
            if not self._is_on_the_worst():
                self.untimed.append(seconds * self._longer(marks))
                self._clocks_mhz.append(self.monitor.sm_clock_mhz())
                last = len(self.untimed) >= self.order.timing.untimed_most
                if self._settled() and (last or self._graphs == before):
                    self._is_timing = True
                    self._start_timing()
        self._enter("data")
        if self._watches_memory():
            self._steps_watched += 1
            if not self._watches_memory():
                self._memory.enter("")  # later peaks count, but for no stage

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.synchronize()
        self._read_steps()
        if not self.steps:  # the training has ended before its queue was in a steady state
            self.steps, self._contents = self._before

    def failure(self) -> Failure | None:
        """Reason why a training that ended well is not a measurement; waits for the device.

        fp16's loss scaling may skip a training's first steps; if it skips most of the timed ones there is no speed.
        """
        steps, skipped = len(self.steps), self.skipped_timed_steps
        if self._finite is not None and not self._finite:
            return Failure(Outcome.NON_FINITE_LOSS, "the loss became NaN or infinite", "forward")
        if 2 * skipped > steps:
            reason = f"fp16 overflowed: {skipped} of {steps} timed steps were skipped"
            return Failure(Outcome.NON_FINITE_LOSS, reason, "backward")
        return None if steps else Failure(Outcome.CRASHED, "the training ended without a timed step", self.stage)

    @property
    def losses(self) -> tuple[float, ...]:
        """The mean loss of each first optimizer step on this rank; waits for the device.

        Without steps on the worst batch, up to a loss that is not finite.
        """
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return tuple(takewhile(math.isfinite, losses))

    @property
    def untimed_steps(self) -> int:
        """Steps before the timed ones, those on the worst batch among them."""
        return len(self.untimed) + (self._steps_watched if self._worst else 0)

    @property
    def compile_s(self) -> float:
        """Seconds of compiling: what the steps before the timed ones took beyond a timed one; 0 if nothing was compiled."""
        if not self._graphs or not self.steps:
            return 0.0
        settled_s = fmean(step.seconds for step in self.steps)
        return sum(max(0.0, seconds - settled_s) for seconds in self._first)

    def _fetch(self, fetch: Callable[..., Any], batches: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        marks, left_out = self._marks, self.order.configuration.gradient_accumulation_steps - number
        marks.fetching = self._clock.mark()
        if self._loads_meanwhile and left_out > 0 and len(self.untimed) == 1 and not self._is_timing:
            fetch(batches, left_out, *args, **kwargs)  # loaded and dropped: see `Measurement.whole_fetch_s`
            marks.fetches_whole = True
        fetched, items = fetch(batches, number, *args, **kwargs)
        marks.fetched = self._clock.mark()
        marks.counted = count(fetched).sent_to_host()
        self.micro_batch_bytes = max(self.micro_batch_bytes, marks.counted.largest_bytes)
        return fetched, items

    def _micro_step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.settings and not self._marks.begun:
            self._read_back.look_ahead(*args[:2])
        self._enter("forward")
        self._marks.begun.append(self._clock.mark())
        loss = step(*args, **kwargs)
        self._marks.done.append(self._clock.mark())
        finite = torch.isfinite(loss).all()
        self._finite = finite if self._finite is None else self._finite & finite
        part = loss.detach().float().mean()  # already divided by the micro-steps, or by the tokens of the whole step
        self._marks.loss = part if self._marks.loss is None else self._marks.loss + part
        self._enter("optimizer")
        return loss

    def _backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._enter("backward")
        self._marks.turned.append(self._clock.mark())
        result = backward(*args, **kwargs)
        self._marks.ended.append(self._clock.mark())
        return result

    def _enter(self, stage: str) -> None:
        self.stage = stage
        if stage not in self._entered:
            self._entered.add(stage)
            print(STAGE.format(stage), flush=True)
        if self._watches_memory():
            self._memory.enter(stage)

    def _watches_memory(self) -> bool:
        """Peaks by stage are read in the first steps: on the worst batch, if there is one."""
        return self._steps_watched < WORST_STEPS

    def _is_on_the_worst(self) -> bool:
        return self._worst is not None and self._watches_memory()

    def _counted_samples(self, marks: Marks) -> int | None:
        """Samples in the step; None if the user's own collator may pack them."""
        samples = marks.counted.samples
        return None if samples is None or self.order.workload.user_objects else int(samples)

    def _samples_of(self, marks: Marks) -> int:
        if self.order.held and self.order.held.counts_rows and marks.counted.samples:
            return max(1, round(float(marks.counted.samples)))
        return self._counted_samples(marks) or self.order.configuration.micro_batch_size * len(marks.begun)

    @property
    def held(self) -> Held | None:
        """What the micro-batches of the timed steps held for each sample that was asked for.

        None if that is not counted, as where a batch of the loader is generated for several micro-steps.
        """
        of, (rows, values) = self.order, map(sum, zip(*self._contents, strict=True)) if self._contents else (0, 0)
        if not rows or not of.workload.user_objects or getattr(self.trainer.args, GENERATION, None):
            return None
        asked = len(self._contents) * of.accumulation_steps_run * of.configuration.micro_batch_size
        is_counted = of.held is not None and of.held.counts_rows
        return Held(rows / asked, values / asked, is_counted)

    def counting_rows(self) -> list[Step]:
        """The timed steps with the rows of their batches as their samples."""
        pairs = zip(self.steps, self._contents, strict=True)
        return [replace(step, samples=max(1, round(rows))) for step, (rows, _) in pairs]

    def _longer(self, marks: Marks) -> float:
        """Tokens of an average step / tokens of this one."""
        counted = marks.counted
        if not self.tokens_per_sample or not counted.tokens or isinstance(counted.samples, torch.Tensor):
            return 1.0
        return self.tokens_per_sample * self._samples_of(marks) / counted.tokens

    def _step_seconds(self, end: Any) -> float:
        seconds, self._previous_end = self._clock.between(self._previous_end, end), end
        return seconds

    def _read_steps(self) -> None:
        """Read the timed steps that the device has finished, without waiting for it."""
        while self._unread and self._clock.passed(self._unread[0].end):
            marks = self._unread.popleft()
            self.steps.append(self._step(marks))
            self._contents.append((float(marks.counted.samples or 0), marks.counted.values))
            self._timed_s += self.steps[-1].seconds
            self.skipped_timed_steps += marks.skipped

    def _waited(self, marks: Marks) -> float:
        """Seconds that the device waited for the step's micro-batches; 0 for a Trainer that fetches them in its own way."""
        return 0.0 if marks.fetched is None else self._clock.between(marks.fetching, marks.fetched)

    def _step(self, marks: Marks) -> Step:
        """The step of these marks; of a Trainer with a backward of its own, all is forward."""
        begun = marks.begun
        complete = len(marks.turned) == len(marks.ended) == len(begun)
        turned, ended = (marks.turned, marks.ended) if complete else (marks.done, marks.done)
        forward = [self._clock.between(*ends) for ends in zip(begun, turned, strict=True)]
        backward = [self._clock.between(*ends) for ends in zip(turned, ended, strict=True)]
        gaps = [self._clock.between(*ends) for ends in pairwise(begun)]
        return Step(
            seconds=self._step_seconds(marks.end),
            data_wait_s=self._waited(marks),
            first_s=gaps[0] if gaps else 0.0,
            middle_s=_mean(gaps[1:]),
            last_s=self._clock.between(begun[-1], marks.end),
            optimizer_s=self._clock.between(ended[-1], marks.stepped or marks.end),
            samples=self._samples_of(marks),
            tokens=marks.counted.tokens,
            forward_s=sum(forward),
            backward_s=sum(backward),
            middle_forward_s=_mean(forward[1:-1]),
            middle_backward_s=_mean(backward[1:-1]),
            non_padding_tokens=int(marks.counted.real_tokens),
        )

    def _settled(self) -> bool:
        """True if timing may begin: for a rank that does not decide, never later than for the one that does."""
        timing = self.order.timing
        if not self._last_step.decides:
            return len(self.untimed) >= timing.untimed_least
        return settled(self.untimed, timing, self._clocks_mhz)

    def _start_timing(self) -> None:
        """Time the steps from here on; what was timed took batches that were loaded before."""
        self.untimed += [step.seconds for step in self.steps]
        self._before = self.steps or self._before[0], self._contents or self._before[1]
        self.steps, self._contents, self._timed_s, self.skipped_timed_steps = [], [], 0.0, 0
        self.monitor.start()
        self._starts, self._were_ready = self._starts + 1, self._ready.count()
        self._previous_end = self._clock.mark()  # start() is not part of a step

    def _was_drained(self) -> bool:
        """True if the timed steps took many batches out of the queue, so that they waited for less than the training will."""
        taken = len(self.steps) * self.order.accumulation_steps_run
        return self._starts < MOST_STARTS and self._were_ready - self._ready.count() > DRAINED * taken

    def _enough(self) -> bool:
        timing, steps = self.order.timing, len(self.steps)
        if not self._last_step.decides or not steps:
            return False
        if steps > timing.timed_most and self._timed_s < timing.timed_seconds_least:
            return False  # hopeless was decided before; the intervals of ever more steps would cost ever more
        decision = decide(self._speed(), steps, self._timed_s, timing, self.order.speed_to_reach)
        if decision is Decision.GO_ON:
            return False
        self._clock.synchronize()
        self._read_steps()
        if decision is Decision.ENOUGH and self._was_drained():
            self._start_timing()
            return False
        self.ended_early = decision is Decision.HOPELESS
        self.monitor.stop()
        return True

    def _speed(self) -> Interval:
        """The composed speed so far, as the objective counts it."""
        order, of = self.order, self.order.configuration
        run, requested = order.accumulation_steps_run, of.gradient_accumulation_steps
        steps = composed_steps(self.steps, run, requested, self.tokens_per_sample)
        counts = [step.non_padding_tokens or step.tokens if order.count_tokens else step.samples for step in steps]
        return ratio_interval([of.data_parallel_size * count for count in counts], [step.seconds for step in steps])


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
