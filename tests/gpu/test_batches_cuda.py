"""Batches of samples of many lengths on a GPU: packed, and grouped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.core import Measurement, Workload
from tests.probe.probes import configuration
from tests.workload.data.test_collate import text_file

pytestmark = pytest.mark.gpu

Train = Callable[..., Measurement]


@pytest.fixture
def train(
    train_as_asked: Train, skip_without: Callable[..., None], workload_of: Callable[..., Workload], tmp_path: Path
) -> Train:
    """`train(packing="flattening")`: a Llama on paragraphs of up to 64 tokens; skips where a value cannot be used."""
    workload = workload_of("llama-mini", dataset=str(text_file(tmp_path)), sequence_length=64)

    def train(**settings: Any) -> Measurement:
        skip_without(workload, **settings)
        return train_as_asked(workload, configuration(4, 2, **settings))

    return train


def share(measurement: Measurement) -> float:
    """How much of all tokens is no padding."""
    steps = measurement.steps
    return sum(step.non_padding_tokens for step in steps) / sum(step.tokens for step in steps)


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_packed_batches_have_no_padding(train: Train, attention: str) -> None:
    both = {"precision": "bf16", "attention": attention}
    packed, plain = train(packing="flattening", **both), train(packing="none", **both)
    assert share(packed) == 1 > share(plain)
    assert [step.non_padding_tokens for step in packed.steps] == [step.non_padding_tokens for step in plain.steps]


def test_grouped_batches_have_less_padding(train: Train) -> None:
    assert share(train(batching="group_by_length")) > share(train(batching="random")) + 0.1
