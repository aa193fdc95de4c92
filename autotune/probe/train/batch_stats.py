"""Samples, tokens with and without padding, and bytes of a step's micro-batches."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autotune.workload.data.rows import read_rows

MASKED = -100
"""Label that losses leave out: torch's `ignore_index` by default."""

LOOK_S = 2.0
"""Longest look for samples without labels, in seconds."""


@dataclass(frozen=True)
class Counted:
    """samples: None if the batches do not show it.

    real_tokens: without padding. It and samples are tensors while the device still sums them. largest_bytes: all tensors of
    the largest micro-batch.
    """

    samples: Any = 0
    tokens: int = 0
    real_tokens: Any = 0
    largest_bytes: int = 0

    def sent_to_host(self) -> "Counted":
        """The same with its tensors being copied to the host, to be read once the device has come that far."""
        return replace(self, samples=_sent_to_host(self.samples), real_tokens=_sent_to_host(self.real_tokens))


def _sent_to_host(count: Any) -> Any:
    return count.to("cpu", non_blocking=True) if isinstance(count, torch.Tensor) else count


def count(batches: Sequence[Any]) -> Counted:
    """Count micro-batches: mappings of tensors whose first dimension is the sample.

    Where samples are packed into one row without a mask, each begins at position 0 (`DataCollatorWithFlattening`).
    Tokens are the entries of `input_ids`; without padding, the ones of `attention_mask` (all, if there is none).
    """
    samples: Any = 0
    tokens, real, largest = 0, 0, 0
    for batch in batches:
        named = batch if isinstance(batch, Mapping) else {}
        tensors = [value for value in named.values() if isinstance(value, torch.Tensor)]
        first: Any = next((len(tensor) for tensor in tensors if tensor.dim()), None)
        if _is_packed(named):
            first = (named["position_ids"] == 0).sum()
        samples = None if first is None or samples is None else samples + first
        ids = named.get("input_ids")
        if isinstance(ids, torch.Tensor):
            tokens += ids.numel()
            mask = named.get("attention_mask")
            masked = isinstance(mask, torch.Tensor) and mask.shape == ids.shape
            real = real + (mask.sum() if masked and mask is not None else ids.numel())
        largest = max(largest, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    return Counted(samples, tokens, real, largest)


def masked_samples(trainer: Any) -> list[int]:
    """Places of samples whose labels are all masked once they are collated, as far as they can be looked at."""
    places = []
    with contextlib.suppress(Exception):  # whatever the user's loader and collator raise for one sample
        loader = trainer.get_train_dataloader()
        for place, row in enumerate(read_rows(loader.dataset, LOOK_S)):
            labels = [value for name, value in loader.collate_fn([row]).items() if name in trainer.label_names]
            if labels and all(bool((torch.as_tensor(each) == MASKED).all()) for each in labels):
                places.append(place)
    return places


def _is_packed(batch: Mapping[str, Any]) -> bool:
    positions = batch.get("position_ids")
    return isinstance(positions, torch.Tensor) and len(positions) == 1 and "attention_mask" not in batch
