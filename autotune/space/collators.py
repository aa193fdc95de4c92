"""Collators that change batches which another one made."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WithoutFullMask:
    """Leaves an attention mask out of a batch in which it hides nothing: as models take it, the same batch.

    A model has to read the mask to know, for which a GPU is waited for, and compiled it cannot: then attention adds a mask of
    tokens x tokens, which keeps torch from its flash kernel (`transformers/masking_utils.py`, `_ignore_causal_mask_sdpa`).
    """

    inner: Any

    def __call__(self, samples: list[Any]) -> Any:
        batch = self.inner(samples)
        if "attention_mask" in batch and bool((batch["attention_mask"] == 1).all()):
            del batch["attention_mask"]
        return batch
