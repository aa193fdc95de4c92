"""Batches of data whose samples differ in length: the longest, which needs the most memory, and the average one.

Both are made by the Trainer's own loader, from the samples that the workload names; of a batch sampler of the user's they are its
own batches. What fails in looking at them is unknown, and ends no trial.
"""

import contextlib
import math
import random
import time
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from torch.utils.data import RandomSampler

from autotune.probe.order import TrainingOrder
from autotune.probe.train.batch_stats import count
from autotune.workload.data.sampling import cuts_in_order

MOST_SAMPLES, MOST_SECONDS = 2048, 1.0
"""Samples to look at, and seconds for making batches of them, to know how long a batch is on average: with 2048 samples it
errs by 1 to 2 %."""

WORST_STEPS = 2
"""Optimizer steps on it: the first makes the optimizer's state, the second has it from the start."""


@dataclass(frozen=True)
class WorstBatch:
    """batches: on the host, as the loader's collator makes them, the longest first. origin: how they were made, for people."""

    batches: tuple[Any, ...]
    origin: str

    def micro_batches(self, count: int, device: Any) -> list[Any]:
        """Copies in turn on the device, each with memory of its own, as the Trainer holds a step's micro-batches."""
        import torch
        from accelerate.utils import recursively_apply, send_to_device

        batches = islice(cycle(self.batches), count)
        return [send_to_device(recursively_apply(torch.clone, batch), device) for batch in batches]


def _loader(order: TrainingOrder, trainer: Any) -> Any:
    """The Trainer's loader; None if all samples are alike, or if a user's own Trainer has another kind of loader."""
    loader = trainer.get_train_dataloader() if order.workload.longest else None
    return loader if hasattr(loader, "dataset") and getattr(loader, "collate_fn", None) is not None else None


def _size(order: TrainingOrder, loader: Any) -> int:
    """Samples of a batch: a loader for generation has those of several micro-steps in each."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return int(size or order.configuration.micro_batch_size)


def tokens_per_sample(order: TrainingOrder, trainer: Any) -> float | None:
    """Tokens of a sample of the dataset, padding included, in the loader's batches on average; a pair of DPO is one sample.

    None if all are as long, if the loader does not shuffle or makes its own batches, or if these show no tokens. The batches are
    random ones, the same samples for each configuration: their mean has the same error for all, and the quotient of two speeds
    has none of it.
    """
    with contextlib.suppress(Exception):
        return _tokens_per_sample(order, _loader(order, trainer))
    return None


def _tokens_per_sample(order: TrainingOrder, loader: Any) -> float | None:
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", getattr(getattr(batches, "batch_sampler", None), "sampler", None))
    if not isinstance(sampler, RandomSampler) or not cuts_in_order(batches):
        return None
    until, samples, tokens = time.monotonic() + MOST_SECONDS, 0, 0
    size, number = _size(order, loader), len(loader.dataset)
    # Whole batches, and not all places first: of ten million samples that takes seconds.
    indices = random.Random(0).sample(range(number), min(-(-MOST_SAMPLES // size) * size, number))
    for begin in range(0, len(indices), size):
        batch = [loader.dataset[index] for index in indices[begin : begin + size]]
        samples, tokens = samples + len(batch), tokens + count([loader.collate_fn(batch)]).tokens
        if time.monotonic() > until:
            break
    return tokens / samples if tokens else None


def worst_batch(order: TrainingOrder, trainer: Any) -> WorstBatch | None:
    """Made by the Trainer's loader from the longest samples; None if these are unknown, or make no batch."""
    with contextlib.suppress(Exception):
        loader = _loader(order, trainer)
        return None if loader is None else _of_longest(order, loader)
    return None


def _of_longest(order: TrainingOrder, loader: Any) -> WorstBatch | None:
    longest, size = order.workload.longest, _size(order, loader)
    if (own := getattr(loader, "batch_sampler", None)) is not None and not cuts_in_order(own):
        batch = next((batch for batch in own if longest[0] in batch), None)
        if batch is None:
            return None
        made = loader.collate_fn([loader.dataset[index] for index in batch])
        return WorstBatch((made,), f"your sampler's batch of sample {longest[0]}, the longest of the data")
    # Micro-batches continue where the one before ended: a step has the same samples whatever its micro-batch size.
    indices = [longest[index % len(longest)] for index in range(math.lcm(size, len(longest)))]
    batches = [indices[begin : begin + size] for begin in range(0, len(indices), size)]
    named = " and ".join(map(str, longest[:size]))
    return WorstBatch(
        tuple(loader.collate_fn([loader.dataset[index] for index in batch]) for batch in batches),
        f"{size} x sample {named}, the longest of the data",
    )


def feed(trainer: Any, worst: WorstBatch, steps: int) -> None:
    """Make the Trainer take its first steps on this batch; call before `train()`."""
    fetch, left = trainer.get_batch_samples, iter(range(steps))

    def fetching(batches: Any, number: int, device: Any, *args: Any, **kwargs: Any) -> Any:
        if next(left, None) is not None:
            batches = iter(worst.micro_batches(number, device))
        return fetch(batches, number, device, *args, **kwargs)

    trainer.get_batch_samples = fetching
