"""Activation checkpointing."""

import pytest
import torch

from autotune.levers.checkpointing import LEVER, field_name
from tests.levers.fakes import observed
from tests.makers import FIELDS, cpu, workload

OLDER = cpu(training_argument_fields=tuple(name for name in FIELDS if name != "activation_checkpointing"))


def test_it_is_called_as_this_transformers_calls_it() -> None:
    assert field_name(cpu()) == "activation_checkpointing"
    assert field_name(OLDER) == "gradient_checkpointing"
    assert LEVER.apply("full", cpu()).training_arguments == {"activation_checkpointing": True}
    assert LEVER.apply("none", OLDER).training_arguments == {"gradient_checkpointing": False}


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
def test_the_user_s_own_is_read_under_both_names(name: str) -> None:
    assert LEVER.own({name: True}, cpu(), workload()) == "full"
    assert LEVER.own({name: False}, cpu(), workload()) == "none"
    assert LEVER.own({}, cpu(), workload()) == "none"


def test_it_is_read_back_from_the_model_s_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert LEVER.read_back(observed(model=model)) == "none"
    model[1].gradient_checkpointing = True  # type: ignore[assignment]
    assert LEVER.read_back(observed(model=model)) == "full"
    model[1].gradient_checkpointing = False  # type: ignore[assignment]
    assert LEVER.read_back(observed(model=model)) == "none"


def test_it_is_unavailable_where_the_model_does_not_support_it() -> None:
    unable = workload(supports_checkpointing=False)
    assert "does not support" in (LEVER.unavailable("full", cpu(), unable) or "")
    assert LEVER.unavailable("none", cpu(), unable) is None
    assert LEVER.unavailable("full", cpu(), workload()) is None
    assert LEVER.unavailable("full", cpu(), workload(supports_checkpointing=None)) is None


def test_without_it_a_training_is_hungrier() -> None:
    assert LEVER.hungrier("none", "full")
    assert not LEVER.hungrier("full", "none")
