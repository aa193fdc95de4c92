"""Random samples of the right shapes, for measuring a model without any data."""

from collections.abc import Mapping
from typing import Any

import torch

from autotune.workload.model.config import image_shape, token_id, vocabulary_size

POOL_SAMPLES = 512
POOL_BYTES = 64 * 1024**2
"""Small: the pool is in the training process and counts against its memory limit."""
MASKED_SHARE = 0.15
DEFAULT_VOCABULARY = 256


class SyntheticSamples:
    """A map-style dataset of `length` samples, drawn in turn from a fixed pool of random ones, at most `pool` different ones.

    An item is a dict of tensors without a batch dimension: input_ids, attention_mask and labels of [tokens] int64,
    pixel_values of [channels, height, width] float32, class labels and answer positions as scalars.
    Values are random, never zeros: matrix products on zeros run measurably faster.
    """

    def __init__(
        self, config: Any, task: str, sequence_length: int | None, length: int, seed: int, pool: int | None = None
    ) -> None:
        self._length = length
        generator = torch.Generator().manual_seed(seed)
        if task == "image-classification":
            self._pool = _images(config, generator)
        else:
            assert sequence_length is not None
            self._pool = _texts(config, task, sequence_length, generator)
        self._size = min(len(next(iter(self._pool.values()))), pool or length)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return {name: values[index % self._size] for name, values in self._pool.items()}


def _pool_samples(bytes_per_sample: int) -> int:
    return max(1, min(POOL_SAMPLES, POOL_BYTES // bytes_per_sample))


def _images(config: Any, generator: torch.Generator) -> dict[str, torch.Tensor]:
    shape = image_shape(config)
    samples = _pool_samples(4 * shape[0] * shape[1] * shape[2])
    return {
        "pixel_values": torch.randn(samples, *shape, generator=generator),
        "labels": torch.randint(config.num_labels, (samples,), generator=generator),
    }


def _texts(config: Any, task: str, tokens: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    samples = _pool_samples(3 * 8 * tokens)
    input_ids = _token_ids(config, (samples, tokens), generator)
    if task == "sequence-classification" and config.is_encoder_decoder:
        # T5 and BART classify at the last end-of-sequence token, and require the same number of them in each sample.
        end = token_id(config, "eos_token_id")
        if end is not None:
            input_ids[:, -1] = end
    return {
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        **_labels(config, task, input_ids, generator),
    }


def _labels(config: Any, task: str, input_ids: torch.Tensor, generator: torch.Generator) -> Mapping[str, torch.Tensor]:
    samples, tokens = input_ids.shape
    match task:
        case "causal-lm":
            return {"labels": input_ids.clone()}
        case "masked-lm":
            hidden = torch.rand(samples, tokens, generator=generator) < MASKED_SHARE
            # A sample without a label would make the loss of a micro-batch of one NaN.
            hidden[torch.arange(samples), torch.randint(tokens, (samples,), generator=generator)] = True
            return {"labels": input_ids.masked_fill(~hidden, -100)}
        case "seq2seq-lm":
            return {"labels": _token_ids(config, (samples, tokens), generator)}
        case "sequence-classification" if getattr(config, "problem_type", None) == "multi_label_classification":
            return {"labels": torch.randint(2, (samples, config.num_labels), generator=generator).float()}
        case "sequence-classification" if config.num_labels == 1:
            return {"labels": torch.randn(samples, generator=generator)}
        case "sequence-classification" if getattr(config, "problem_type", None) == "regression":
            return {"labels": torch.randn(samples, config.num_labels, generator=generator)}
        case "sequence-classification":
            return {"labels": torch.randint(config.num_labels, (samples,), generator=generator)}
        case "token-classification":
            return {"labels": torch.randint(config.num_labels, (samples, tokens), generator=generator)}
        case "question-answering":
            ends = torch.randint(tokens, (2, samples), generator=generator).sort(dim=0).values
            return {"start_positions": ends[0], "end_positions": ends[1]}
    raise ValueError(f"no synthetic samples for the task {task!r}")


def _token_ids(config: Any, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Uniform token ids that are neither padding nor end of sequence: models look for these two in the text."""
    vocabulary = vocabulary_size(config) or DEFAULT_VOCABULARY
    special = {token_id(config, name) for name in ("pad_token_id", "eos_token_id")}
    excluded = sorted(token for token in special if token is not None and 0 <= token < vocabulary)
    excluded = excluded if len(excluded) < vocabulary else []
    ids = torch.randint(vocabulary - len(excluded), shape, generator=generator)
    for token in excluded:
        ids += ids >= token
    return ids
