"""The attention mask."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import default_data_collator

from autotune.core import Measurement, Workload
from autotune.space.collators import WithoutFullMask
from autotune.space.settings import Context
from autotune.space.settings.attention_mask import SETTING
from autotune.space.setup import training_setup
from autotune.workload.data.collate import collated_as_asked
from autotune.workload.data.synthetic import SyntheticSamples
from autotune.workload.model.build import build_model
from tests import makers
from tests.makers import cpu, workload
from tests.space.settings.fakes import observed

DROPPED = {"drop_full_attention_mask": True}


def samples(*masks: list[int]) -> list[dict[str, Any]]:
    return [{"input_ids": [1] * len(mask), "attention_mask": mask} for mask in masks]


@pytest.mark.parametrize(
    ("masks", "kept"), [([[1, 1], [1, 1]], False), ([[1, 1], [1, 0]], True), ([[2, 2], [2, 2]], True)]
)
def test_a_mask_is_left_out_where_it_hides_nothing(masks: list[list[int]], kept: bool) -> None:
    made = collated_as_asked(default_data_collator, DROPPED)(samples(*masks))
    assert ("attention_mask" in made) is kept
    assert made["input_ids"].shape == (2, 2)
    assert "attention_mask" in collated_as_asked(default_data_collator, {})(samples(*masks))


def test_batches_without_any_mask_stay_as_they_are() -> None:
    assert WithoutFullMask(default_data_collator)([{"pixel_values": [1.0]}]).keys() == {"pixel_values"}


@pytest.mark.parametrize("model", ["gpt2-mini", "t5-mini", "moe-mini"])
def test_a_model_computes_the_same_without_it(workload_of: Callable[..., Workload], model: str) -> None:
    of = workload_of(model, sequence_length=16)
    torch.manual_seed(0)
    built = build_model(of).eval()
    pool = SyntheticSamples(built.config, of.task, 16, 2, seed=0)
    losses = [
        built(**collated_as_asked(default_data_collator, asked)([pool[0], pool[1]])).loss for asked in ({}, DROPPED)
    ]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)


def test_it_is_an_argument_of_the_data_and_read_back_from_the_collator() -> None:
    asked = makers.configuration(8, attention_mask="where_needed")
    assert training_setup(asked, cpu(), {}).data_arguments == DROPPED
    assert SETTING.from_user(Context(cpu(), workload())) == "always"
    assert SETTING.read_back(observed(collator=WithoutFullMask(print))) == "where_needed"
    assert SETTING.read_back(observed(collator=print)) == "always"


def test_a_probe_trains_without_it_and_counts_its_tokens(train: Callable[..., Measurement]) -> None:
    measurement = train("gpt2-mini", attention_mask="where_needed", workers=2)
    assert {(step.tokens, step.non_padding_tokens) for step in measurement.steps} == {(64, 64)}
    # 16 ids and as many labels of 8 bytes for each of two samples, and no mask.
    assert measurement.micro_batch_bytes == 2 * 2 * 16 * 8
