"""Worst batch: the longest samples of the data, which need the most memory."""

import math
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from autotune.probe.order import TrainingOrder

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


def worst_batch(order: TrainingOrder, trainer: Any) -> WorstBatch | None:
    """Made by the Trainer's own loader from the longest samples; None where these are unknown."""
    longest = order.workload.longest
    if not longest:
        return None
    loader = trainer.get_train_dataloader()
    # A loader for generation has the samples of several micro-steps in each batch.
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    size = size or order.configuration.micro_batch_size
    if not hasattr(loader, "dataset") or getattr(loader, "collate_fn", None) is None:
        return None  # a user's own Trainer
    # Micro-batches continue where the one before ended: a step has the same samples whatever its micro-batch size.
    places = [longest[place % len(longest)] for place in range(math.lcm(size, len(longest)))]
    batches = [places[begin : begin + size] for begin in range(0, len(places), size)]
    named = " and ".join(map(str, longest[:size]))
    return WorstBatch(
        tuple(loader.collate_fn([loader.dataset[place] for place in batch]) for batch in batches),
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
