"""Batching."""

from enum import Enum

import pytest

from autotune.space.settings import Context
from autotune.space.settings.batching import SETTING
from tests.makers import FIELDS, cpu, gpu, workload
from tests.space.settings.fakes import observed

NEWER = cpu(training_argument_fields=(*FIELDS, "train_sampling_strategy"))
OLDER = cpu(training_argument_fields=(*FIELDS, "group_by_length"))
VARIED = workload(longest=(3,))


class Strategy(Enum):
    SEQUENTIAL = "sequential"


def test_it_is_called_as_this_transformers_calls_it() -> None:
    assert SETTING.apply("group_by_length", NEWER).training_arguments == {"train_sampling_strategy": "group_by_length"}
    assert SETTING.apply("group_by_length", OLDER).training_arguments == {"group_by_length": True}
    assert SETTING.apply("random", OLDER).training_arguments == {"group_by_length": False}


def test_the_user_s_own_is_read_under_both_names() -> None:
    assert SETTING.from_user(Context(NEWER, VARIED)) == "random"
    assert SETTING.from_user(Context(NEWER, VARIED, {"train_sampling_strategy": Strategy.SEQUENTIAL})) == "sequential"
    assert SETTING.from_user(Context(OLDER, VARIED, {"group_by_length": True})) == "group_by_length"


def test_it_is_read_back_from_the_trainer_s_arguments() -> None:
    assert SETTING.read_back(observed(arguments={"train_sampling_strategy": Strategy.SEQUENTIAL})) == "sequential"
    assert SETTING.read_back(observed(arguments={"group_by_length": True})) == "group_by_length"
    assert SETTING.read_back(observed()) == "random"


@pytest.mark.parametrize("value", ["sequential", "batch_rebalance"])
def test_an_older_transformers_knows_two_strategies(value: str) -> None:
    assert "no such strategy" in (SETTING.unavailable(value, Context(OLDER, VARIED)) or "")
    assert SETTING.unavailable("group_by_length", Context(OLDER, VARIED)) is None


def test_samples_of_one_length_need_no_grouping_and_one_rank_no_balance() -> None:
    assert "same length" in (SETTING.unavailable("group_by_length", Context(NEWER, workload())) or "")
    assert "ranks" in (SETTING.unavailable("batch_rebalance", Context(NEWER, VARIED)) or "")
    several = gpu(device_count=2, training_argument_fields=NEWER.training_argument_fields)
    assert SETTING.unavailable("batch_rebalance", Context(several, VARIED)) is None
    assert SETTING.unavailable("random", Context(cpu(), workload())) is None
