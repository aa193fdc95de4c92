"""Times steps, reads memory and watches the loss of a running Trainer, from inside.

get_batch_samples      training_step   training_step   training_step   clip, optimizer   on_step_end
|---- data wait ----|--- first --------|--- middle ----|--- last -------------------------|
"""

import contextlib
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.levers import LEVERS, Observed
from autotune.measurement import Interval, Step, ratio_interval
from autotune.probe.order import Order

BUSY_SHARE = 0.25
"""Cores' worth of foreign work from which on a CPU measurement is doubted."""


class Misconfigured(Exception):
    """The running training shows other settings than were asked for."""


class NonFiniteLoss(Exception):
    """The loss became NaN or infinite."""


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Attaches to a Trainer and stops it when enough is known.

    stage: what is being done now (build, data, forward, backward, optimizer): where a failure happened.
    steps: the timed steps so far. settings: lever -> value as the running training shows it.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.stage = "build"
        self.steps: list[Step] = []
        self.untimed: list[float] = []
        self.ended_early = False
        self.settings: dict[str, Any] = {}
        self.micro_batch_bytes = 0
        self._cuda = bool(order.environment and not order.environment.is_cpu)
        self._finite: torch.Tensor | None = None
        self._linear: tuple[str, bool] | None = None
        self._timed_since: float | None = None
        self._previous_end = time.perf_counter()
        self._marks: list[Any] = []
        self._last_backward_end: Any = None
        self._wait = 0.0
        self._counted = (0, 0)
        self._busy = Busyness()

    def attach(self, trainer: Any) -> None:
        """Wrap what the Trainer calls between its callbacks; call before `train()`."""
        self.trainer = trainer
        trainer.get_batch_samples = self._around_fetching(trainer.get_batch_samples)
        trainer.training_step = self._around_micro_step(trainer.training_step)
        trainer.accelerator.backward = self._around_backward(trainer.accelerator.backward)
        self._hook = self._watch_first_linear(trainer.model)
        trainer.add_callback(self)

    # What the Trainer calls ---------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.stage = "data"
        self._previous_end = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = self._synchronised_now()
        seconds, self._previous_end = now - self._previous_end, now
        if not self.settings:
            self._read_back()
        samples, tokens = self._counted
        if self._timed_since is None:
            self.untimed.append(seconds)
            if self._settled():
                self._timed_since = now
                self._busy.start()
        else:
            self.steps.append(self._step(seconds, now, samples, tokens))
            control.should_training_stop = self._enough(now)
        self._marks = []
        self.stage = "data"

    # What is known at the end -------------------------------------------------------------------------------

    @property
    def finite(self) -> bool:
        """Whether every loss so far was finite; waits for the device."""
        return self._finite is None or bool(self._finite)

    def doubts(self) -> tuple[str, ...]:
        """What was going on beside the timed steps."""
        doubts = []
        cores = self._busy.foreign_cores()
        if not self._cuda and cores > BUSY_SHARE:
            doubts.append(f"other processes used {cores:.1f} cores meanwhile")
        if self._cuda and (retries := int(torch.cuda.memory_stats().get("num_alloc_retries", 0))):
            doubts.append(f"the allocator freed its cache and tried again {retries} time(s)")
        return tuple(doubts)

    # Inside -------------------------------------------------------------------------------------------------

    def _around_fetching(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        def fetching(*args: Any, **kwargs: Any) -> Any:
            self.stage = "data"
            begun = time.perf_counter()
            batches, items = fetch(*args, **kwargs)
            self._wait = time.perf_counter() - begun
            self._count(batches)
            return batches, items

        return fetching

    def _around_micro_step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def micro_step(*args: Any, **kwargs: Any) -> Any:
            self.stage = "forward"
            self._marks.append(self._mark())
            loss = step(*args, **kwargs)
            finite = torch.isfinite(loss).all()
            self._finite = finite if self._finite is None else self._finite & finite
            self._last_backward_end = self._mark()
            self.stage = "optimizer"
            return loss

        return micro_step

    def _around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def going_back(*args: Any, **kwargs: Any) -> Any:
            self.stage = "backward"
            return backward(*args, **kwargs)

        return going_back

    def _watch_first_linear(self, model: Any) -> Any:
        """Note dtype and autocast where the first linear or convolution layer leaves the first micro-step."""
        from transformers.pytorch_utils import Conv1D

        device = "cuda" if self._cuda else "cpu"
        hooks: list[Any] = []

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            if self._linear is None and isinstance(output, torch.Tensor):
                self._linear = (str(output.dtype).removeprefix("torch."), torch.is_autocast_enabled(device))
                for hook in hooks:
                    hook.remove()

        kinds = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, Conv1D)
        hooks += [module.register_forward_hook(left) for module in model.modules() if isinstance(module, kinds)]
        return hooks

    def _read_back(self) -> None:
        """Compare what the training shows with what was asked; raises Misconfigured where they differ."""
        assert self.order.configuration is not None
        dtype, autocast = self._linear or ("float32", False)
        observed = Observed(self.trainer, dtype, autocast, _tf32())
        asked = self.order.configuration.values
        self.settings = {name: LEVERS[name].read_back(observed) for name in asked}
        differing = [n for n, value in asked.items() if self.settings[n] is not None and self.settings[n] != value]
        samples = self._counted[0]
        expected = self.order.configuration.micro_batch_size * self.order.accumulation_steps_run
        if differing:
            said = ", ".join(f"{name} {asked[name]} became {self.settings[name]}" for name in differing)
            raise Misconfigured(said)
        if samples and samples != expected:
            self.settings["micro_batch_size"] = samples / self.order.accumulation_steps_run
            raise Misconfigured(f"a step took {samples} samples instead of {expected}")

    def _count(self, batches: list[Any]) -> None:
        samples = tokens = 0
        for batch in batches:
            tensors = (
                [value for value in batch.values() if isinstance(value, torch.Tensor)]
                if hasattr(batch, "values")
                else []
            )
            samples += self._samples_of(tensors)
            ids = batch.get("input_ids") if hasattr(batch, "get") else None
            tokens += ids.numel() if isinstance(ids, torch.Tensor) else 0
            self.micro_batch_bytes = max(self.micro_batch_bytes, sum(t.numel() * t.element_size() for t in tensors))
        self._counted = (samples, tokens)

    def _samples_of(self, tensors: list[torch.Tensor]) -> int:
        """Samples in a micro-batch: its first dimension; the caller's own collator may pack them, so there as asked."""
        assert self.order.configuration is not None
        if self.order.workload is None or self.order.workload.user_objects:
            return self.order.configuration.micro_batch_size
        return next((len(tensor) for tensor in tensors if tensor.dim()), 0)

    def _mark(self) -> Any:
        """A point in time: the clock's on a CPU, an event in the device's stream on CUDA, read at the step's end."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended)) / 1000 if self._cuda else ended - begun

    def _synchronised_now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _step(self, seconds: float, now: float, samples: int, tokens: int) -> Step:
        end = now
        if self._cuda:
            end = self._mark()
            torch.cuda.synchronize()
        marks = self._marks
        gaps = [self._between(one, two) for one, two in pairwise(marks)]
        return Step(
            seconds=seconds,
            data_wait_s=self._wait,
            first_s=gaps[0] if gaps else 0.0,
            middle_s=fmean(gaps[1:]) if len(gaps) > 1 else 0.0,
            last_s=self._between(marks[-1], end),
            optimizer_s=self._between(self._last_backward_end, end),
            samples=samples,
            tokens=tokens,
        )

    def _settled(self) -> bool:
        """Whether the last untimed step took about as long as the one before it, or enough of them were taken."""
        timing, times = self.order.timing, self.untimed
        if len(times) < timing.untimed_least:
            return False
        return len(times) >= timing.untimed_most or abs(times[-1] / times[-2] - 1) < 0.1

    def _enough(self, now: float) -> bool:
        timing, count = self.order.timing, len(self.steps)
        assert self._timed_since is not None
        over = now - self._timed_since > timing.seconds
        if count >= timing.timed_most or (over and count >= 3):
            return True
        if count < 3:
            return False
        speed = self._speed()
        if self.order.best_so_far is not None and speed.high < self.order.best_so_far.low:
            self.ended_early = True
            return True
        return count >= timing.timed_least and speed.relative_width / 2 <= timing.target

    def _speed(self) -> Interval:
        """Samples (or tokens) / second with the accumulation that was asked for."""
        assert self.order.configuration is not None
        asked = self.order.configuration.gradient_accumulation_steps
        steps = [step.composed(self.order.accumulation_steps_run, asked) for step in self.steps]
        counts = [step.tokens if self.order.count_tokens else step.samples for step in steps]
        return ratio_interval(counts, [step.seconds for step in steps])


def _tf32() -> bool:
    """Whether float32 matrix products run in TF32, by whichever interface this torch reads it."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision in ("tf32", "ieee"):
        return bool(precision == "tf32")
    with contextlib.suppress(RuntimeError):
        return bool(matmul.allow_tf32)
    return False


class Busyness:
    """CPU time that processes outside this one's session used between two moments."""

    def start(self) -> None:
        self._begun = (time.perf_counter(), _machine_cpu_seconds(), _session_cpu_seconds())

    def foreign_cores(self) -> float:
        """Cores' worth of foreign work since the start; 0 where it never started."""
        if not hasattr(self, "_begun"):
            return 0.0
        clock, machine, ours = self._begun
        elapsed = time.perf_counter() - clock
        foreign = (_machine_cpu_seconds() - machine) - (_session_cpu_seconds() - ours)
        # The kernel counts in hundredths of a second: too short a window says nothing.
        return max(0.0, foreign / elapsed) if elapsed > 0.5 else 0.0


def _machine_cpu_seconds() -> float:
    """User, nice, system, interrupt and stolen seconds of all cores since boot (proc(5))."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _session_cpu_seconds() -> float:
    """User and system seconds of this process and its living descendants (its loader's workers)."""
    import psutil

    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
