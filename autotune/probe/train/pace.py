"""Pace of a training that is measured: it settles, is timed, and stops.

    steps on the worst batch (memory by stage) --> untimed steps until they settle --> timed steps until they suffice

The device is waited for at the end of each untimed step and of the last timed one. In between the host runs ahead, as in any
training, by one step at most (see `LastStep`): a step is read once the device has finished it.
"""

from collections import deque
from statistics import fmean
from typing import Any

import torch

from autotune.core import Interval, Step
from autotune.core.interval import ratio_interval
from autotune.core.step import composed_steps
from autotune.probe.device.clock import HostClock
from autotune.probe.device.compile import graphs_compiled
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import TrainingOrder
from autotune.probe.process.ranks import LastStep
from autotune.probe.train.adaptive import Decision, decide, settled
from autotune.probe.train.marks import Marks, data_wait, samples_of, step_of
from autotune.probe.train.ready import DRAINED, MOST_STARTS, ReadyBatches


class Pace:
    """Decides after each step whether the training goes on; of several ranks the first decides, for all.

    untimed: seconds of the steps before the timed ones, without those on the worst batch. steps: the timed ones so far, and
    `contents` the rows and values of the micro-batches of each; skipped: how many of them loss scaling skipped;
    recompiled_graphs: compiled in them. ended_early: as it cannot be the fastest. tokens_per_sample, whole_fetch_s: see
    `Measurement`.
    """

    def __init__(self, order: TrainingOrder, clock: HostClock, monitor: MachineMonitor, last_step: LastStep) -> None:
        self._order, self._clock, self._monitor, self._last_step = order, clock, monitor, last_step
        self.is_timing = self.ended_early = False
        self.untimed: list[float] = []
        self.steps: list[Step] = []
        self.contents: list[tuple[float, float]] = []
        self.skipped = self.recompiled_graphs = 0
        self.tokens_per_sample: float | None = None
        self.whole_fetch_s: float | None = None
        self._before: tuple[list[Step], list[tuple[float, float]]] = [], []  # timed steps that emptied the queue
        self._clocks_mhz: list[float | None] = []
        self._first: list[float] = []
        self._unread: deque[Marks] = deque()
        self._timed_s = 0.0
        self._taken = self._starts = self._graphs = 0
        self._decided = False

    def begin(self, loader: Any) -> None:
        """The training begins."""
        self._ready = ReadyBatches(loader)
        self._end_before = self._previous_end = self._clock.mark()

    def wait(self, end: Any) -> None:
        """Wait for the device at the end of a step as long as this one needs it."""
        if not self.is_timing:
            self._clock.synchronize()
        self._clock.wait_for(self._end_before)
        self._end_before = end

    def end_step(self, marks: Marks, is_on_the_worst: bool) -> bool:
        """A step has ended: True if the training ends with it."""
        before, self._graphs = self._graphs, graphs_compiled()
        self._taken += 1
        seconds = 0.0 if self.is_timing else self._step_seconds(marks.end)
        if self._last_step.reached(self._taken):
            return True
        if self._decided:
            return False  # all ranks stop together, some steps later
        if self.is_timing:
            self.recompiled_graphs += self._graphs - before
            self._unread.append(marks)
            self._read_steps()
            self._decided = self._enough()
            return self._decided and self._last_step.announce(self._taken)
        if marks.fetches_whole:
            self.whole_fetch_s = data_wait(self._clock, marks)
            seconds -= self.whole_fetch_s  # no other step is like it
        self._first.append(seconds)
        if not is_on_the_worst:
            self.untimed.append(seconds * self._longer(marks))
            self._clocks_mhz.append(self._monitor.sm_clock_mhz())
            last = len(self.untimed) >= self._order.timing.untimed_most
            if self._settled() and (last or self._graphs == before):
                self.is_timing = True
                self._start_timing()
        return False

    def end(self) -> None:
        """The training has ended."""
        self._clock.synchronize()
        self._read_steps()
        if not self.steps:  # before its queue was in a steady state
            self.steps, self.contents = self._before

    @property
    def compile_s(self) -> float:
        """Seconds of compiling: what the steps before the timed ones took beyond a timed one; 0 if nothing was compiled."""
        if not self._graphs or not self.steps:
            return 0.0
        settled_s = fmean(step.seconds for step in self.steps)
        return sum(max(0.0, seconds - settled_s) for seconds in self._first)

    def _longer(self, marks: Marks) -> float:
        """Tokens of an average step / tokens of this one."""
        counted = marks.counted
        if not self.tokens_per_sample or not counted.tokens or isinstance(counted.samples, torch.Tensor):
            return 1.0
        return self.tokens_per_sample * samples_of(self._order, marks) / counted.tokens

    def _step_seconds(self, end: Any) -> float:
        seconds, self._previous_end = self._clock.between(self._previous_end, end), end
        return seconds

    def _read_steps(self) -> None:
        """Read the timed steps that the device has finished, without waiting for it."""
        while self._unread and self._clock.passed(self._unread[0].end):
            marks = self._unread.popleft()
            self.steps.append(step_of(self._order, self._clock, marks, self._step_seconds(marks.end)))
            self.contents.append((marks.rows, marks.values))
            self._timed_s += self.steps[-1].seconds
            self.skipped += marks.skipped

    def _settled(self) -> bool:
        """True if timing may begin: for a rank that does not decide, never later than for the one that does."""
        timing = self._order.timing
        if not self._last_step.decides:
            return len(self.untimed) >= timing.untimed_least
        return settled(self.untimed, timing, self._clocks_mhz)

    def _start_timing(self) -> None:
        """Time the steps from here on; what was timed took batches that were loaded before."""
        self.untimed += [step.seconds for step in self.steps]
        self._before = self.steps or self._before[0], self.contents or self._before[1]
        self.steps, self.contents, self._timed_s, self.skipped = [], [], 0.0, 0
        self._monitor.start()
        self._starts, self._were_ready = self._starts + 1, self._ready.count()
        self._previous_end = self._clock.mark()  # start() is not part of a step

    def _was_drained(self) -> bool:
        """True if the timed steps took many batches out of the queue, so that they waited for less than the training will."""
        taken = len(self.steps) * self._order.accumulation_steps_run
        return self._starts < MOST_STARTS and self._were_ready - self._ready.count() > DRAINED * taken

    def _enough(self) -> bool:
        timing, steps = self._order.timing, len(self.steps)
        if not self._last_step.decides or not steps:
            return False
        if steps > timing.timed_most and self._timed_s < timing.timed_seconds_least:
            return False  # hopeless was decided before; the intervals of ever more steps would cost ever more
        decision = decide(self._speed(), steps, self._timed_s, timing, self._order.speed_to_reach)
        if decision is Decision.GO_ON:
            return False
        self._clock.synchronize()
        self._read_steps()
        if decision is Decision.ENOUGH and self._was_drained():
            self._start_timing()
            return False
        self.ended_early = decision is Decision.HOPELESS
        self._monitor.stop()
        return True

    def _speed(self) -> Interval:
        """The composed speed so far, as the objective counts it."""
        order, of = self._order, self._order.configuration
        run, requested = order.accumulation_steps_run, of.gradient_accumulation_steps
        steps = composed_steps(self.steps, run, requested, self.tokens_per_sample)
        counts = [step.non_padding_tokens or step.tokens if order.count_tokens else step.samples for step in steps]
        return ratio_interval([of.data_parallel_size * count for count in counts], [step.seconds for step in steps])
