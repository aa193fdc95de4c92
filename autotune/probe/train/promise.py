"""Callback of a real training that compares its speed with the one that a search promised.

step ends | evaluation, saving | waiting for data | forward, backward, optimizer | step ends
          |---- outside -------|----------------------- step -------------------|
"""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback

from autotune.core import Configuration, Interval
from autotune.core.errors import PromiseMissed
from autotune.core.interval import ratio_interval
from autotune.core.measurement import INPUT_BOUND
from autotune.core.real_run import SHORTFALL, RealRun
from autotune.probe.device.clock import CudaClock, HostClock
from autotune.probe.device.machine import MachineMonitor, cpu_name
from autotune.probe.order import timings
from autotune.probe.train.adaptive import Decision, decide, settled

LONGER = 0.1
"""Share by which samples have more tokens than measured from which on that is named as a reason."""

AGAIN = ", `autotune verify` measures it again"


class PromiseCallback(TrainerCallback):  # type: ignore[misc]
    """Compares a training's speed with the one that a search promised, once it has settled and at its end.

    Each time it prints a line and writes realized.json into the study's folder; `autotune studies`, the report and `autotune
    verify` show it. A speed below the promised interval is a `PromiseMissed` warning with the likely reasons, once. It times
    steps on the first rank and waits for the device three times; it changes nothing.

    result: a `TuningResult`, of a search or loaded from its folder.
    """

    def __init__(self, result: Any) -> None:
        self.result = result
        self.run: RealRun | None = None  #: what was compared last
        self._is_on = False

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        best, here = self.result.best, self.result.environment
        of: Configuration = best.configuration
        sizes = args.train_batch_size, args.gradient_accumulation_steps, args.world_size
        self._of, self._final, self._here = of, best.final, here
        steps = best.final.composed_steps
        self._samples = of.data_parallel_size * sum(step.samples for step in steps) / len(steps)
        self.run, self._is_on = None, bool(state.is_world_process_zero)
        sizes_of_answer = of.micro_batch_size, of.gradient_accumulation_steps, of.data_parallel_size
        if self._is_on and sizes != sizes_of_answer:
            self._is_on = False
            trained, answer = (" x ".join(map(str, each)) for each in (sizes, sizes_of_answer))
            self._say(f"this training has {trained} samples a step, the answer {answer}: not compared")
        self._timing = timings(here.is_cpu)[1]
        on_gpu = torch.cuda.is_available() and not args.use_cpu
        self._clock = CudaClock() if on_gpu else HostClock()
        self._device = str(torch.cuda.get_device_name()) if on_gpu else cpu_name()
        self._machine = MachineMonitor(here)
        self._untimed: list[float] = []
        self._seconds: list[float] = []
        self._waits: list[float] = []
        self._outside_s = self._lost_s = self._wait_s = 0.0
        self._is_timing = self._is_warned = False
        self._tokens_per_sample = 0.0
        self._mark = self._end = self._clock.now()

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self._is_on:
            self._wait_s = self._clock.now() - self._mark

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if not self._is_on:
            return
        now = self._clock.now()
        seconds, self._end, self._mark = now - self._end - self._lost_s, now, now
        if not self._is_timing:
            self._untimed.append(seconds)
            if settled(self._untimed, self._timing):
                self._is_timing = True
                self._start()
        else:
            self._seconds.append(seconds)
            self._waits.append(self._wait_s)
            self._outside_s += self._lost_s
            if self.run is None and self._is_enough():
                self._compare(is_over=False)
                self._start()
        self._lost_s = 0.0

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        if self._is_on:
            logs = logs or {}
            seen = logs.get("num_tokens", logs.get("num_input_tokens_seen", 0))  # of TRL, of transformers if requested
            self._tokens_per_sample = float(seen) / (max(1, state.global_step) * self._samples)
            if "loss" in logs:
                self._mark = self._clock.now()

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self._is_on:
            now = self._clock.now()
            self._lost_s, self._mark = self._lost_s + now - self._mark, now

    on_save = on_evaluate

    def on_epoch_end(self, _args: Any, _state: Any, _control: Any, train_dataloader: Any = None, **_: Any) -> None:
        try:
            is_short = len(train_dataloader.dataset) % self._of.global_batch_size != 0
        except (TypeError, AttributeError):
            is_short = False
        if self._is_on and is_short and self._seconds:  # its last step had fewer samples
            self._seconds.pop()
            self._waits.pop()

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if not self._is_on:
            return
        self._outside_s += self._lost_s
        if len(self._seconds) < 2:
            self._say(f"the training was too short to compare its speed: {len(self._seconds)} settled steps")
        else:
            self._compare(is_over=True)
        self._is_on = False

    def _start(self) -> None:
        self._clock.synchronize()
        self._machine.start()
        self._end = self._mark = self._clock.now()

    def _is_enough(self) -> bool:
        return decide(self._speed(), len(self._seconds), sum(self._seconds), self._timing, None) is Decision.ENOUGH

    def _speed(self) -> Interval:
        return ratio_interval([self._samples] * len(self._seconds), self._seconds)

    def _compare(self, is_over: bool) -> None:
        self._clock.synchronize()
        self._machine.stop()
        speed, seconds = self._speed(), sum(self._seconds)
        outside_share = self._outside_s / (seconds + self._outside_s)
        run = RealRun.of(
            self.result.promised_speed,
            speed,
            overall=speed * (1 - outside_share),
            steps=len(self._seconds),
            seconds=seconds,
            data_wait_share=sum(self._waits) / seconds,
            outside_share=outside_share,
            is_over=is_over,
            date=date.today().isoformat(),
            configuration=self._of.to_dict(),
        )
        self.run = run = replace(run, reason="; ".join(self._reasons(run)) if run.is_slower else "")
        self._say(f"{'the training ran' if is_over else 'the training has settled at'} {run.text}")
        self.result.keep_real_run(run, teaches=is_over and self._device == self._here.device_name)
        if run.is_slower and not self._is_warned:
            self._is_warned = True
            why = run.reason or f"no reason was seen{AGAIN if self.result.is_verifiable else ''}"
            warnings.warn(
                f"The training is slower than promised: {run.text}. Likely: {why}.", PromiseMissed, stacklevel=2
            )

    def _reasons(self, run: RealRun) -> Iterator[str]:
        """Observed reasons that make a training slower, the surest first."""
        if self._device != self._here.device_name:
            yield f"the promise is of another device ({self._here.device_name}), this is {self._device}"
        yield from map(str, self._machine.warnings())
        if run.outside_share >= SHORTFALL:
            yield f"evaluation and saving took {run.outside_share:.0%} of the time"
        measured = self._final.data_wait_share or 0.0
        if run.data_wait_share >= measured + INPUT_BOUND / 2:
            yield f"a step waits for data {run.data_wait_share:.0%} of its time, {measured:.0%} when it was measured"
        tokens = self._tokens_per_sample
        samples = sum(step.samples for step in self._final.steps)
        usual = sum(step.non_padding_tokens or step.tokens for step in self._final.steps) / samples
        if usual and tokens > (1 + LONGER) * usual:
            yield f"a sample has {tokens:.0f} tokens, {usual:.0f} when it was measured"

    def _say(self, text: str) -> None:
        tqdm.write(f"autotune: {text}.", file=sys.stderr)
