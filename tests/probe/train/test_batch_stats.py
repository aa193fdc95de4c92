"""Samples, tokens and bytes of micro-batches, counted exactly."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.probe.train.batch_stats import Counted, count


def texts(samples: int, tokens: int, padding: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.ones(samples, tokens, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[:, tokens - padding :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids}


@pytest.mark.parametrize("seed", range(8))
def test_every_sample_and_token_of_every_micro_batch_is_counted_once(seed: int) -> None:
    chance = random.Random(seed)
    shapes = []
    for _ in range(chance.randint(1, 8)):
        tokens = chance.randint(1, 40)
        shapes.append((chance.randint(1, 9), tokens, chance.randint(0, tokens)))
    counted = count([texts(*shape) for shape in shapes])
    assert counted.samples == sum(samples for samples, _, _ in shapes)
    assert counted.tokens == sum(samples * tokens for samples, tokens, _ in shapes)
    assert counted.real_tokens == sum(samples * (tokens - padding) for samples, tokens, padding in shapes)
    assert counted.largest_bytes == max(3 * 8 * samples * tokens for samples, tokens, _ in shapes)


def test_without_a_mask_of_the_same_shape_every_token_counts() -> None:
    ids = torch.ones(2, 5, dtype=torch.int64)
    assert count([{"input_ids": ids}]).real_tokens == 10
    packed = {"input_ids": ids, "attention_mask": torch.zeros(2, 1, 5, 5)}
    assert count([packed]).real_tokens == 10


def test_images_have_samples_and_bytes_and_no_tokens() -> None:
    batch = {"pixel_values": torch.ones(4, 3, 8, 8), "labels": torch.ones(4, dtype=torch.int64)}
    assert count([batch, batch]) == Counted(8, 0, 0, 4 * 3 * 64 * 4 + 4 * 8, 2 * 4 * 3 * 64)


@pytest.mark.parametrize("strange", ["a text", 7, SimpleNamespace(), torch.ones(()), {"names": ["a", "b"]}, {}])
def test_a_batch_that_does_not_show_its_samples_leaves_them_unknown(strange: Any) -> None:
    assert count([strange]).samples is None
    assert count([texts(2, 3), strange]).samples is None
    assert count([strange, texts(2, 3)]).samples is None
    assert count([strange, texts(2, 3)]).tokens == 6
