"""Batches of a probe: kinds that data and model allow (padded to a multiple, packed), and the batches that its steps get."""

import inspect
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard

from autotune.space.settings.batching import GROUPED, SEQUENTIAL, strategy

SAME_LENGTH = "all samples have the same length"
IMAGES = "images have no padding"
NEEDED = "samples of many lengths need it"
OWN = "your own dataset and data collator decide what a batch is"

NOT_RANDOM = (GROUPED, SEQUENTIAL)
"""Sampling strategies with first steps that differ from the rest."""

QUANTILES = 33
"""Quantiles that tell how far batches are padded."""

GOLDEN = (5**0.5 - 1) / 2
"""The fractional parts of its multiples spread evenly, for any number of them (three-distance theorem)."""


def collating(task: str, varied: bool, model: Any) -> dict[str, str | None]:
    """Argument of the collator -> None if batches can use it, else the reason. varied: lengths of samples differ."""
    if task == "image-classification":
        return {"pad_to_multiple_of": IMAGES, "packing": IMAGES, "attention_mask": IMAGES}
    if not varied:
        return {"pad_to_multiple_of": SAME_LENGTH, "packing": SAME_LENGTH, "attention_mask": None}
    return {"pad_to_multiple_of": None, "packing": _why_not_packed(task, model), "attention_mask": NEEDED}


def own_collating(collator: Any, processing_class: Any) -> tuple[dict[str, str | None], int | None]:
    """The same for the user's collator, and the multiple to which it pads already.

    Without a collator the Trainer's pads if it is given a tokenizer.
    """
    pads = hasattr(collator, "pad_to_multiple_of") or (collator is None and hasattr(processing_class, "pad"))
    reason = None if pads else "your data collator has no pad_to_multiple_of"
    multiple = getattr(collator, "pad_to_multiple_of", None)
    return {"pad_to_multiple_of": reason, "packing": OWN, "attention_mask": OWN}, multiple


def _why_not_packed(task: str, model: Any) -> str | None:
    """None if the model keeps the samples of one row apart, by positions that begin again, else the reason.

    transformers' masks do so if the model gives them its positions (`masking_utils.find_packed_sequence_indices`),
    FlashAttention always; layers with a state (Mamba) run on from one sample into the next.
    """
    if task != "causal-lm":
        return "samples are packed in causal language models only"
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return f"{name} takes no positions, by which packed samples are kept apart"
    if getattr(model, "_is_stateful", False):
        return f"{name} keeps a state that would run on from one packed sample into the next"
    try:
        code = inspect.getsource(inspect.getmodule(type(model)))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return f"the source of {name} cannot be read"
    passes_positions = "create_causal_mask(" in code and (
        "position_ids=position_ids" in code or '"position_ids"' in code
    )
    return None if passes_positions else f"{name} does not keep packed samples apart"


def spread_steps(trainer: Any) -> None:
    """Make a probe's few steps represent a whole order that is sorted by length, or as the data is.

    A sampler that groups by length begins with the longest samples and goes down for some fifty steps: the first steps are
    slower than the average. Each step keeps its samples; only the order of steps changes.
    """
    if strategy(vars(trainer.args)) not in NOT_RANDOM or not hasattr(trainer, "_get_train_sampler"):
        return
    make = trainer._get_train_sampler
    ranks = getattr(trainer.args, "world_size", 1)  # a step's samples are together, for all ranks
    size = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * ranks

    def spread(*args: Any, **kwargs: Any) -> Any:
        inner = make(*args, **kwargs)
        return None if inner is None else SpreadSteps(inner, size)

    trainer._get_train_sampler = spread


class SpreadSteps(torch.utils.data.Sampler):  # type: ignore[misc]
    """The inner sampler's samples, `size` together as they were, from places spread evenly over its whole order."""

    def __init__(self, inner: Any, size: int) -> None:
        self.inner, self.size = inner, size

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[int]:
        places = list(self.inner)
        steps = [places[begin : begin + self.size] for begin in range(0, len(places), self.size)]
        last = [steps.pop()] if steps and len(steps[-1]) < self.size else []
        turns = sorted(range(len(steps)), key=lambda turn: ((turn + 0.5) * GOLDEN) % 1)
        order = sorted(zip(turns, steps, strict=True))  # the place at each turn, spread as the multiples are
        for step in [*(step for _, step in order), *last]:
            yield from step


def repeat_batches(trainer: Any, batches: int) -> None:
    """Make the Trainer's loader give this number of micro-batches before its epoch ends; call before `train()`.

    The loader repeats, not the user's dataset: code that counts labels or groups by length reads each sample once. The
    loader is made once.
    """
    make, loaders = trainer.get_train_dataloader, list[Any]()

    def repeating(*args: Any, **kwargs: Any) -> Any:
        if not loaders:
            loaders.append(make(*args, **kwargs))
            _repeat(loaders[0], batches)
        return loaders[0]

    setattr(repeating, "once", make)  # noqa: B010  # a new one that ends as the user's does
    trainer.get_train_dataloader = repeating


def _repeat(loader: Any, batches: int) -> None:
    """Only torch's loaders: a user's Trainer class may have another one."""
    inner = getattr(loader, "base_dataloader", loader)  # accelerate's loader iterates another one
    if not isinstance(inner, torch.utils.data.DataLoader):
        return
    # Torch refuses to set these on a loader, as workers that run already would not see it; none runs yet.
    if isinstance(inner.dataset, torch.utils.data.IterableDataset):
        vars(inner)["dataset"] = RepeatedStream(inner.dataset)
    elif inner.batch_sampler is not None:
        vars(inner)["batch_sampler"] = RepeatedBatches(inner.batch_sampler, batches)


class RepeatedBatches(torch.utils.data.Sampler):  # type: ignore[misc]
    """This number of batches of the inner sampler's places, which begins again at its end; fewer if it is empty.

    A batch that torch's sampler would cut short is filled from the next pass; another sampler's batches stay as they are, such
    as those of buckets. All are drawn at once: a pass drawn during the training
    would depend on the random numbers that the training takes.
    """

    def __init__(self, batch_sampler: Any, batches: int) -> None:
        self.batch_sampler, self.batches = batch_sampler, batches
        self.sampler = getattr(batch_sampler, "sampler", None)
        self.batch_size: int | None = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        # From these accelerate's loader tells the batch of all ranks.
        self.num_processes = getattr(batch_sampler, "num_processes", 1)
        self.split_batches = getattr(batch_sampler, "split_batches", False)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        drawn, rest = list[Any](), list[Any]()
        size = self.batch_size if cuts_in_order(self.batch_sampler) else None
        while len(drawn) < self.batches and (fresh := list(islice(self.batch_sampler, self.batches))):
            if size:
                rest += [place for batch in fresh for place in batch]
                fresh = [rest[at : at + size] for at in range(0, len(rest) - size + 1, size)]
                rest = rest[len(fresh) * size :]
            drawn += fresh
        return iter(drawn[: self.batches])


def cuts_in_order(batch_sampler: Any) -> bool:
    """True for torch's own batches: equal numbers of samples in their sampler's order, whichever these are."""
    while isinstance(batch_sampler, (RepeatedBatches, BatchSamplerShard)):
        batch_sampler = batch_sampler.batch_sampler
    return type(batch_sampler) is torch.utils.data.BatchSampler


class RepeatedStream(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """An iterable dataset that begins again at its end; one that yields nothing ends."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        while True:
            empty = True
            for sample in self.dataset:
                empty = False
                yield sample
            if empty:
                return


def quantiles(sizes: Sequence[float]) -> tuple[float, ...]:
    """QUANTILES of them, at equal steps from the least to the most; empty if all are alike."""
    at = np.linspace(0.0, 1.0, QUANTILES)
    return tuple(np.quantile(sizes, at).tolist()) if len({*sizes}) > 1 else ()
