"""Samples, tokens with and without padding, and bytes of a step's micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Counted:
    """samples: None if the batches do not show it. values: numbers in the first tensors.

    real_tokens: without padding. It and samples are tensors while the device still sums them. largest_bytes: all tensors of
    the largest micro-batch.
    """

    samples: Any = 0
    tokens: int = 0
    real_tokens: Any = 0
    largest_bytes: int = 0
    values: int = 0

    def sent_to_host(self) -> "Counted":
        """The same with its tensors being copied to the host, to be read once the device has come that far."""
        return replace(self, samples=_sent_to_host(self.samples), real_tokens=_sent_to_host(self.real_tokens))


def _sent_to_host(count: Any) -> Any:
    return count.to("cpu", non_blocking=True) if isinstance(count, torch.Tensor) else count


def count(batches: Sequence[Any]) -> Counted:
    """Count micro-batches: the first dimension of the first tensor is the sample, of mappings or whatever a loader gives.

    Where samples are packed into one row without a mask, each begins at position 0 (`DataCollatorWithFlattening`).
    Tokens are the entries of `input_ids`; without padding, the ones of `attention_mask` (all, if there is none).
    """
    samples: Any = 0
    tokens, real, largest, values = 0, 0, 0, 0
    for batch in batches:
        named = batch if isinstance(batch, Mapping) else {}
        tensors = [value for value in named.values() if isinstance(value, torch.Tensor)]
        tensor = first_tensor(batch)
        first: Any = None if tensor is None else len(tensor)
        values += 0 if tensor is None else tensor.numel()
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
    return Counted(samples, tokens, real, largest, values)


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first tensor with a dimension in a batch, or in what a model is called with."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((tensor for part in parts if (tensor := first_tensor(part)) is not None), None)


def _is_packed(batch: Mapping[str, Any]) -> bool:
    positions = batch.get("position_ids")
    return isinstance(positions, torch.Tensor) and len(positions) == 1 and "attention_mask" not in batch
