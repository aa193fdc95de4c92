"""What batches of this data and model can be: padded to a multiple, packed; and a fair order of steps of like samples."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

SAME_LENGTH = "all samples have the same length"
IMAGES = "images have no padding"
NEEDED = "samples of many lengths need it"
OWN = "what a batch is, your own dataset and data collator decide"

NOT_RANDOM = ("group_by_length", "sequential")
"""Strategies of sampling in whose order the first steps are not like the rest."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole part, spread evenly however many of them are taken (three-distance theorem)."""


def collating(task: str, varied: bool, model: Any) -> dict[str, str | None]:
    """Argument of the collator -> None where batches can be made so, else why not. varied: lengths of samples differ."""
    if task == "image-classification":
        return {"pad_to_multiple_of": IMAGES, "packing": IMAGES, "attention_mask": IMAGES}
    if not varied:
        return {"pad_to_multiple_of": SAME_LENGTH, "packing": SAME_LENGTH, "attention_mask": None}
    return {"pad_to_multiple_of": None, "packing": _why_not_packed(task, model), "attention_mask": NEEDED}


def own_collating(collator: Any, processing_class: Any) -> tuple[dict[str, str | None], int | None]:
    """The same for what a caller brought, and to which multiple it pads by itself.

    Where no collator was brought, the Trainer's own pads if it is given a tokenizer.
    """
    pads = hasattr(collator, "pad_to_multiple_of") or (collator is None and hasattr(processing_class, "pad"))
    why = None if pads else "your data collator has no pad_to_multiple_of"
    return {"pad_to_multiple_of": why, "packing": OWN, "attention_mask": OWN}, getattr(
        collator, "pad_to_multiple_of", None
    )


def _why_not_packed(task: str, model: Any) -> str | None:
    """None where the model keeps apart what lies behind each other in one row, by positions that begin again.

    transformers' masks do so where the model hands them its positions (`masking_utils.find_packed_sequence_indices`),
    FlashAttention by itself; layers with a state (Mamba) run on from one sample into the next.
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
    hands_on = "create_causal_mask(" in code and ("position_ids=position_ids" in code or '"position_ids"' in code)
    return None if hands_on else f"{name} does not keep packed samples apart"


def spread_steps(trainer: Any) -> None:
    """Make a probe's few steps stand for all of an order that is sorted by length, or as the data lies.

    A sampler that groups by length begins with the longest samples and goes down for some fifty steps: the first ones would
    look slower than all are. Each step keeps its samples; only which step comes when is another.
    """
    strategy = getattr(trainer.args, "train_sampling_strategy", None)
    grouped = str(getattr(strategy, "value", strategy)) in NOT_RANDOM or getattr(trainer.args, "group_by_length", False)
    if not grouped or not hasattr(trainer, "_get_train_sampler"):
        return
    make = trainer._get_train_sampler
    ranks = getattr(trainer.args, "world_size", 1)  # a step's samples lie together over all of them
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
