"""Batches of a probe: kinds that data and model allow (padded to a multiple, packed), and the batches that its steps get."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import BatchSamplerShard
from transformers.trainer_utils import has_length

from autotune.core.proxy import Proxy
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


def user_collating(collator: Any, processing_class: Any) -> tuple[dict[str, str | None], int | None]:
    """Result of `collating` for the user's collator, and the multiple to which it pads already.

    Without a collator the Trainer's pads if it is given a tokenizer.
    """
    pads = hasattr(collator, "pad_to_multiple_of") or (collator is None and hasattr(processing_class, "pad"))
    reason = None if pads else "your data collator has no pad_to_multiple_of"
    multiple = getattr(collator, "pad_to_multiple_of", None)
    return {"pad_to_multiple_of": reason, "packing": OWN, "attention_mask": OWN}, multiple


def _why_not_packed(task: str, model: Any) -> str | None:
    """Reason why the model does not keep the samples of one row apart, by positions that begin again; or None.

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


class SpreadSteps(Proxy):
    """The sampler's samples, `size` together as they were, from places spread evenly over its whole order."""

    def __init__(self, sampler: Any, size: int) -> None:
        super().__init__(sampler, size)

    def __iter__(self) -> Iterator[int]:
        sampler, size = self._proxied
        is_range = isinstance(sampler, torch.utils.data.SequentialSampler)  # no list of ten million places
        places = range(len(sampler)) if is_range else list(sampler)
        whole = len(places) // size
        turns = np.argsort(((np.arange(whole) + 0.5) * GOLDEN) % 1)
        order = np.argsort(turns)  # the place at each turn, spread as the multiples are
        for step in chain(order, [whole]):
            yield from places[int(step) * size : (int(step) + 1) * size]


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
    """Repeat the samples of torch's loaders; a user's Trainer class may have another one. Enough batches stay as they are."""
    inner = getattr(loader, "base_dataloader", loader)  # accelerate's loader iterates another one
    if not isinstance(inner, torch.utils.data.DataLoader):
        return
    # Torch refuses to set these on a loader, as workers that run already would not see it; none runs yet.
    if isinstance(inner.dataset, torch.utils.data.IterableDataset):
        vars(inner)["dataset"] = RepeatedStream(inner.dataset)
    elif inner.batch_sampler is not None and not (has_length(inner) and len(inner) >= batches):
        vars(inner)["batch_sampler"] = RepeatedBatches(inner.batch_sampler, batches)


class RepeatedBatches(Proxy):
    """This number of batches of the batch sampler's places, which begins again at its end; fewer if it is empty.

    A batch that torch's sampler would cut short is filled from the next pass; another sampler's batches stay as they are, such
    as those of buckets. All are drawn with the first one: a pass drawn during the training would depend on the random numbers
    that the training takes. Its length is the batch sampler's.
    """

    def __init__(self, batch_sampler: Any, batches: int) -> None:
        super().__init__(batch_sampler, batches)

    def __iter__(self) -> Iterator[Any]:
        batch_sampler, batches = self._proxied
        drawn, rest = list[Any](), list[Any]()
        size = batch_sampler.batch_size if cuts_in_order(batch_sampler) else None
        while len(drawn) < batches and (fresh := list(islice(batch_sampler, batches))):
            if size:
                rest += [place for batch in fresh for place in batch]
                fresh = [rest[at : at + size] for at in range(0, len(rest) - size + 1, size)]
                rest = rest[len(fresh) * size :]
            drawn += fresh
        yield from drawn[:batches]


def cuts_in_order(batch_sampler: Any) -> bool:
    """True for torch's own batches: equal numbers of samples in their sampler's order, whichever these are."""
    while isinstance(batch_sampler, BatchSamplerShard) or hasattr(batch_sampler, "_proxied"):
        batch_sampler = batch_sampler._proxied[0] if hasattr(batch_sampler, "_proxied") else batch_sampler.batch_sampler
    return type(batch_sampler) is torch.utils.data.BatchSampler


class RepeatedStream(Proxy):
    """An iterable dataset that begins again at its end for torch's loader; one that yields nothing ends."""

    def __iter__(self) -> Iterator[Any]:
        is_loader = sys._getframe(1).f_globals.get("__name__", "").startswith("torch.utils.data")
        return _endless(self._proxied[0]) if is_loader else iter(self._proxied[0])


def _endless(stream: Any) -> Iterator[Any]:
    empty = False
    while not empty:
        empty = True
        for sample in stream:
            empty = False
            yield sample


def quantiles(sizes: Sequence[float]) -> tuple[float, ...]:
    """QUANTILES of them, at equal steps from the least to the most; empty if all are alike."""
    at = np.linspace(0.0, 1.0, QUANTILES)
    return tuple(np.quantile(sizes, at).tolist()) if len({*sizes}) > 1 else ()
