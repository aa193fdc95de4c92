"""Marks of a training's steps on the device's clock, and what they say of a step.

get_batch_samples      training_step              training_step ... training_step      clip, optimizer   on_step_end
|---- data wait ----|--- forward | backward ---|--- middle ------|--- last --------------------------|

All times but the host's for reading are the device's own: what overlaps is counted once.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch

from autotune.core import Step
from autotune.probe.device.clock import HostClock
from autotune.probe.order import TrainingOrder
from autotune.probe.train.batch_stats import Counted


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
    shares: tuple[float, float] = (1.0, 1.0)  #: of the batches' rows and values that reach the model

    @property
    def rows(self) -> float:
        """Rows of the step's batches that reach the model."""
        return self.shares[0] * float(self.counted.samples or 0)

    @property
    def values(self) -> float:
        """Numbers in the first tensors that reach the model."""
        return self.shares[1] * self.counted.values


def counted_samples(order: TrainingOrder, marks: Marks) -> int | None:
    """Samples in the step; None if the user's own collator may pack them."""
    samples = marks.counted.samples
    return None if samples is None or order.workload.user_objects else int(samples)


def samples_of(order: TrainingOrder, marks: Marks) -> int:
    """Samples in the step, as far as they are counted, or as many as were asked for."""
    if order.held and order.held.counts_rows and marks.counted.samples:
        return max(1, round(marks.rows))
    return counted_samples(order, marks) or order.configuration.micro_batch_size * len(marks.begun)


def data_wait(clock: HostClock, marks: Marks) -> float:
    """Seconds that the device waited for the step's micro-batches; 0 for a Trainer that fetches them in its own way."""
    return 0.0 if marks.fetched is None else clock.between(marks.fetching, marks.fetched)


def step_of(order: TrainingOrder, clock: HostClock, marks: Marks, seconds: float) -> Step:
    """The step of these marks; of a Trainer with a backward of its own, all is forward."""
    begun = marks.begun
    complete = len(marks.turned) == len(marks.ended) == len(begun)
    turned, ended = (marks.turned, marks.ended) if complete else (marks.done, marks.done)
    forward = [clock.between(*ends) for ends in zip(begun, turned, strict=True)]
    backward = [clock.between(*ends) for ends in zip(turned, ended, strict=True)]
    gaps = [clock.between(*ends) for ends in pairwise(begun)]
    return Step(
        seconds=seconds,
        data_wait_s=data_wait(clock, marks),
        first_s=gaps[0] if gaps else 0.0,
        middle_s=_mean(gaps[1:]),
        last_s=clock.between(begun[-1], marks.end),
        optimizer_s=clock.between(ended[-1], marks.stepped or marks.end),
        samples=samples_of(order, marks),
        tokens=marks.counted.tokens,
        forward_s=sum(forward),
        backward_s=sum(backward),
        middle_forward_s=_mean(forward[1:-1]),
        middle_backward_s=_mean(backward[1:-1]),
        non_padding_tokens=int(marks.counted.real_tokens),
    )


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
