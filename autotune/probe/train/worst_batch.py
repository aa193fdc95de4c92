"""Worst batch: the longest samples of the data, which need the most memory."""

import math
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from autotune.probe.order import Order

WORST_STEPS = 2
"""Optimizer steps on it: the optimizer's state is made in the first, and lies beside everything in the second."""


@dataclass(frozen=True)
class WorstBatch:
    """batches: on the host, as the loader's collator makes them, the longest first. origin: how they were made, for people."""

    batches: tuple[Any, ...]
    origin: str

    def micro_batches(self, count: int, device: Any) -> list[Any]:
        """So many of them in turn on the device, each with memory of its own, as the Trainer holds a step's micro-batches."""
        from accelerate.utils import send_to_device

        batches = islice(cycle(self.batches), count)
        return [send_to_device(_copied(batch), device) for batch in batches]


def worst_batch(order: Order, trainer: Any) -> WorstBatch | None:
    """Made by the Trainer's own loader from the longest samples; None where all samples are alike or none is known."""
    assert order.workload is not None
    assert order.configuration is not None
    longest = order.workload.longest
    if not longest:
        return None
    loader = trainer.get_train_dataloader()
    # Of the loader, where it says so: one that generates has the samples of several micro-steps in each of its batches.
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    size = size or order.configuration.micro_batch_size
    if not hasattr(loader, "dataset") or getattr(loader, "collate_fn", None) is None:
        return None  # a caller's own Trainer brings batches in its own way
    # Micro-batches go on where the one before ended: a step has the same samples whatever its micro-batch size.
    places = [longest[place % len(longest)] for place in range(math.lcm(size, len(longest)))]
    batches = [places[begin : begin + size] for begin in range(0, len(places), size)]
    named = " and ".join(map(str, longest[:size]))
    return WorstBatch(
        tuple(loader.collate_fn([loader.dataset[place] for place in batch]) for batch in batches),
        f"{size} x sample {named}, the longest of the data",
    )


def feed(trainer: Any, worst: WorstBatch, steps: int) -> None:
    """Make the Trainer take its first so many steps on this batch; call before `train()`."""
    fetch, left = trainer.get_batch_samples, steps

    def fetching(batches: Any, number: int, device: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            batches = iter(worst.micro_batches(number, device))
        return fetch(batches, number, device, *args, **kwargs)

    trainer.get_batch_samples = fetching


def _copied(batch: Any) -> Any:
    import torch
    from accelerate.utils import recursively_apply

    return recursively_apply(torch.clone, batch)
