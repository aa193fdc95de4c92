"""Timer of a running Trainer's steps, which also checks its loss and settings."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.core import Outcome, Step
from autotune.core.failures import Failure
from autotune.core.kept import Held
from autotune.core.loss_curves import COMPARED_STEPS
from autotune.probe.device.clock import HostClock
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import TrainingOrder
from autotune.probe.process.ranks import LastStep
from autotune.probe.train.batch_contents import Reached
from autotune.probe.train.batch_stats import count
from autotune.probe.train.marks import Marks, counted_samples
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory
from autotune.probe.train.pace import Pace
from autotune.probe.train.read_back import ReadBack
from autotune.probe.train.stages import StageWatch
from autotune.probe.train.worst_batch import WORST_STEPS, WorstBatch, feed
from autotune.space.settings.micro_batch_size import GENERATION


class Stopwatch(TrainerCallback):  # type: ignore[misc]
    """Attaches to a Trainer, marks its steps, and stops it when its pace says so.

    settings: setting -> value that the running training shows.
    """

    def __init__(
        self,
        order: TrainingOrder,
        memory: HostMemory | DeviceMemory,
        clock: HostClock,
        monitor: MachineMonitor,
        last_step: LastStep,
    ) -> None:
        self.order, self.monitor = order, monitor
        self.stages, self.pace = StageWatch(memory), Pace(order, clock, monitor, last_step)
        self.settings: dict[str, Any] = {}
        self.micro_batch_bytes = self.skipped_steps = 0
        self.worst_batch = ""
        self._clock = clock
        self._worst: WorstBatch | None = None
        self._finite: torch.Tensor | None = None
        self._losses: list[torch.Tensor] = []
        self._marks = Marks()

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
        self._reached = Reached(trainer)
        copies = getattr(trainer.accelerator, "dataloader_config", None)
        self._loads_meanwhile = bool(trainer.args.dataloader_num_workers or getattr(copies, "non_blocking", False))

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        self.stages.enter("data")
        self.pace.begin(train_dataloader)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._marks.stepped = self._clock.mark()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        marks, self._marks = self._marks, Marks()
        marks.end = self._clock.mark()
        is_on_the_worst = self._worst is not None and self.stages.reads_peaks
        if marks.loss is not None and len(self._losses) < COMPARED_STEPS and not is_on_the_worst:
            self._losses.append(marks.loss)
        marks.skipped = bool(getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False))
        self.skipped_steps += marks.skipped
        self.pace.wait(marks.end)
        if not self.settings:
            self._reached.close()
            self.settings = self._read_back.settings(counted_samples(self.order, marks), len(marks.begun))
        marks.shares = self.shares
        if self.pace.end_step(marks, is_on_the_worst):
            control.should_training_stop = True
        self.stages.enter("data")
        self.stages.end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.pace.end()

    def failure(self) -> Failure | None:
        """Reason why a training that ended well is not a measurement; waits for the device.

        fp16's loss scaling may skip a training's first steps; if it skips most of the timed ones there is no speed.
        """
        steps, skipped = len(self.pace.steps), self.pace.skipped
        if self._finite is not None and not self._finite:
            return Failure(Outcome.NON_FINITE_LOSS, "the loss became NaN or infinite", "forward")
        if 2 * skipped > steps:
            reason = f"fp16 overflowed: {skipped} of {steps} timed steps were skipped"
            return Failure(Outcome.NON_FINITE_LOSS, reason, "backward")
        return None if steps else Failure(Outcome.CRASHED, "the training ended without a timed step", self.stages.now)

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
        return len(self.pace.untimed) + (self.stages.steps if self._worst else 0)

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the batches' (rows, values) that reach the model."""
        return self._reached.shares

    @property
    def held(self) -> Held | None:
        """Rows and values that the micro-batches of the timed steps held for each sample that was asked for.

        None if that is not counted, as where a batch of the loader is generated for several micro-steps.
        """
        of, contents = self.order, self.pace.contents
        rows, values = map(sum, zip(*contents, strict=True)) if contents else (0, 0)
        if not rows or not of.workload.user_objects or getattr(self.trainer.args, GENERATION, None):
            return None
        asked = len(contents) * of.accumulation_steps_run * of.configuration.micro_batch_size
        is_counted = of.held is not None and of.held.counts_rows
        return Held(rows / asked, values / asked, is_counted)

    def counting_rows(self) -> list[Step]:
        """The timed steps with the rows that the model saw as their samples."""
        pairs = zip(self.pace.steps, self.pace.contents, strict=True)
        return [replace(step, samples=max(1, round(rows))) for step, (rows, _) in pairs]

    def _fetch(self, fetch: Callable[..., Any], batches: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        marks, pace = self._marks, self.pace
        left_out = self.order.configuration.gradient_accumulation_steps - number
        marks.fetching = self._clock.mark()
        if self._loads_meanwhile and left_out > 0 and len(pace.untimed) == 1 and not pace.is_timing:
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
        if not self.settings:
            self._reached.begin(args[1] if len(args) > 1 else kwargs.get("inputs"))
        self.stages.enter("forward")
        self._marks.begun.append(self._clock.mark())
        loss = step(*args, **kwargs)
        self._marks.done.append(self._clock.mark())
        finite = torch.isfinite(loss).all()
        self._finite = finite if self._finite is None else self._finite & finite
        part = loss.detach().float().mean()  # already divided by the micro-steps, or by the tokens of the whole step
        self._marks.loss = part if self._marks.loss is None else self._marks.loss + part
        self.stages.enter("optimizer")
        return loss

    def _backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._reached.end()
        self.stages.enter("backward")
        self._marks.turned.append(self._clock.mark())
        result = backward(*args, **kwargs)
        self._marks.ended.append(self._clock.mark())
        return result
