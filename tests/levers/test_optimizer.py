"""The optimizer."""

from enum import StrEnum
from types import SimpleNamespace

import pytest
import torch

from autotune.levers import Work
from autotune.levers.optimizer import LEVER, NAMES
from tests.levers.fakes import observed
from tests.makers import cpu, workload

WEIGHTS = torch.nn.Linear(2, 2)


class Named(StrEnum):
    LION = "lion_32bit"


class Adafactor(torch.optim.SGD):
    """Only its name counts."""


def of_bitsandbytes(name: str, bits: int) -> torch.optim.Optimizer:
    kind = type(name, (torch.optim.SGD,), {"__module__": "bitsandbytes.optim.adamw"})
    made = kind(WEIGHTS.parameters(), lr=0.1)
    made.args = SimpleNamespace(optim_bits=bits)
    return made


def test_it_is_applied_by_name() -> None:
    assert LEVER.apply("adafactor", cpu()).training_arguments == {"optim": "adafactor"}


def test_the_user_s_own_is_a_name_or_hugging_face_s_enumeration() -> None:
    assert LEVER.own({}, cpu(), workload()) == "adamw_torch_fused"
    assert LEVER.own({"optim": "sgd"}, cpu(), workload()) == "sgd"
    assert LEVER.own({"optim": Named.LION}, cpu(), workload()) == "lion_32bit"


@pytest.mark.parametrize(
    ("optimizer", "value"),
    [
        (torch.optim.AdamW(WEIGHTS.parameters()), "adamw_torch"),
        (torch.optim.AdamW(WEIGHTS.parameters(), fused=True), "adamw_torch_fused"),
        (torch.optim.SGD(WEIGHTS.parameters()), "sgd"),
        (Adafactor(WEIGHTS.parameters()), "adafactor"),
        (of_bitsandbytes("AdamW", 8), "adamw_bnb_8bit"),
        (of_bitsandbytes("AdamW", 32), "adamw_bnb_32bit"),
    ],
)
def test_it_is_read_back_from_what_steps(optimizer: torch.optim.Optimizer, value: str) -> None:
    assert LEVER.read_back(observed(optimizer=optimizer)) == value
    assert LEVER.read_back(observed(optimizer=SimpleNamespace(optimizer=optimizer))) == value


@pytest.mark.parametrize("name", ["adamw_8bit", "lion_8bit"])
def test_an_alias_of_an_eight_bit_optimizer_is_read_back_as_it_was_named(name: str) -> None:
    assert LEVER.read_back(observed(optimizer=of_bitsandbytes("AdamW", 8), optim=name)) == name
    assert LEVER.read_back(observed(optimizer=of_bitsandbytes("AdamW", 32), optim=name)) == "adamw_bnb_32bit"


def test_a_class_of_its_own_is_read_back_by_the_name_that_made_it() -> None:
    assert LEVER.read_back(observed(optimizer=SimpleNamespace(), optim=Named.LION)) == "lion_32bit"


def test_it_is_unavailable_as_the_device_showed() -> None:
    broken = cpu(optimizers={"adamw_bnb_8bit": "no GPU build"})
    assert LEVER.unavailable("adamw_bnb_8bit", broken, workload()) == "no GPU build"
    assert "not tried" in (LEVER.unavailable("sgd", broken, workload()) or "")
    assert all(LEVER.unavailable(name, cpu(), workload()) is None for name in NAMES)


def test_more_state_is_hungrier() -> None:
    assert LEVER.hungrier("adamw_torch", "adamw_torch_fused")
    assert LEVER.hungrier("adamw_torch_fused", "sgd")
    # Less state, but more on the way: neither is leaner in every configuration.
    assert not LEVER.hungrier("adamw_torch_fused", "adamw_bnb_8bit")
    assert not LEVER.hungrier("adamw_torch", "adafactor")
    assert not LEVER.hungrier("lion_32bit", "sgd")
    assert not LEVER.hungrier("adamw_torch", "lion_32bit")
    assert LEVER.hungrier("lion_32bit", "lion_32bit")


def test_its_step_is_expected_as_fast_as_the_device_was_measured_to_be() -> None:
    rates = {"adamw_torch": 1e8, "adamw_torch_fused": 4e8, "adafactor": 5e7}
    assert LEVER.work("adamw_torch_fused", rates) == Work(update=0.25)
    assert LEVER.work("adafactor", rates) == Work(update=2.0)
    assert LEVER.work("sgd", rates) == Work(), "never measured"
    assert LEVER.work("adafactor", {"adafactor": 5e7}) == Work()
