"""The optimizer."""

from enum import StrEnum
from types import SimpleNamespace

import pytest
import torch
from transformers.training_args import OptimizerNames

from autotune.space.settings import ACCUMULATION, Context
from autotune.space.settings.optimizer import NAMES, SETTING, _installed_names
from autotune.space.setup import training_setup
from tests.makers import configuration, cpu, gpu, workload
from tests.space.settings.fakes import observed

WEIGHTS = torch.nn.Linear(2, 2)


class Named(StrEnum):
    LION = "lion_32bit"


def of_package(package: str, name: str) -> torch.optim.Optimizer:
    """Only the names of class and package count."""
    return type(name, (torch.optim.SGD,), {"__module__": f"{package}.optim"})(WEIGHTS.parameters(), lr=0.1)


def of_bitsandbytes(name: str, bits: int, paged: bool = False) -> torch.optim.Optimizer:
    made = of_package("bitsandbytes", name)
    made.args = SimpleNamespace(optim_bits=bits)  # type: ignore[attr-defined]
    made.is_paged = paged  # type: ignore[attr-defined]
    return made


def test_the_user_s_own_is_a_name_or_hugging_face_s_enumeration() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "adamw_torch_fused"
    assert SETTING.from_user(Context(cpu(), workload(), {"optim": "sgd"})) == "sgd"
    assert SETTING.from_user(Context(cpu(), workload(), {"optim": Named.LION})) == "lion_32bit"


@pytest.mark.parametrize(
    ("optimizer", "value"),
    [
        (torch.optim.AdamW(WEIGHTS.parameters()), "adamw_torch"),
        (torch.optim.AdamW(WEIGHTS.parameters(), fused=True), "adamw_torch_fused"),
        (of_package("transformers", "Adafactor"), "adafactor"),
        (of_package("torchao", "AdamW4bit"), "adamw_torch_4bit"),
        (of_bitsandbytes("AdamW", 8), "adamw_bnb_8bit"),
    ],
)
def test_it_is_read_back_from_what_steps(optimizer: torch.optim.Optimizer, value: str) -> None:
    assert SETTING.read_back(observed(optimizer=optimizer)) == value
    assert SETTING.read_back(observed(optimizer=SimpleNamespace(optimizer=optimizer))) == value


@pytest.mark.parametrize(
    ("name", "kind", "bits", "paged"),
    [
        ("paged_adamw_8bit", "AdamW", 8, True),
        ("lion_8bit", "Lion", 8, False),
        ("ademamix", "AdEMAMix", 32, False),
    ],
)
def test_one_of_bitsandbytes_is_read_back_as_it_was_named_if_kind_bits_and_pages_agree(
    name: str, kind: str, bits: int, paged: bool
) -> None:
    assert SETTING.read_back(observed(optimizer=of_bitsandbytes(kind, bits, paged), optim=name)) == name
    for other in (("SGD", bits, paged), (kind, 40 - bits, paged), (kind, bits, not paged)):
        assert SETTING.read_back(observed(optimizer=of_bitsandbytes(*other), optim=name)) != name


@pytest.mark.parametrize("name", ["galore_adamw", Named.LION])
def test_one_of_another_library_is_read_back_by_its_name_and_no_other_by_that(name: str) -> None:
    assert SETTING.read_back(observed(optimizer=of_package("galore_torch", "AdamW"), optim=name)) == name
    assert SETTING.read_back(observed(optimizer=torch.optim.SGD(WEIGHTS.parameters()), optim=name)) == "sgd"


def test_it_is_unavailable_as_the_device_showed() -> None:
    broken = cpu(optimizers={"adamw_bnb_8bit": "no GPU build"})
    assert str(SETTING.unavailable("adamw_bnb_8bit", Context(broken, workload()))) == "no GPU build"
    assert "not tried" in str(SETTING.unavailable("sgd", Context(broken, workload())))
    there = {"paged_adamw_8bit": None}
    assert "GPU" in str(SETTING.unavailable("paged_adamw_8bit", Context(cpu(optimizers=there), workload())))
    assert SETTING.unavailable("paged_adamw_8bit", Context(gpu(optimizers=there), workload())) is None


def test_every_name_of_this_transformers_is_known_and_no_other_word() -> None:
    assert {OptimizerName.value for OptimizerName in OptimizerNames} <= {*NAMES, *_installed_names()}
    assert set(_installed_names()) == {OptimizerName.value for OptimizerName in OptimizerNames}
    assert all(SETTING.read(OptimizerName.value) == OptimizerName.value for OptimizerName in OptimizerNames)


def test_low_rank_ones_take_all_linear_layers_where_the_user_names_none() -> None:
    asked = configuration(8, 8, optimizer="galore_adamw")
    assert training_setup(asked, cpu(), {}).training_arguments["optim_target_modules"] == "all-linear"
    own = {"optim_target_modules": ["attn"]}
    assert training_setup(asked, cpu(), own).training_arguments["optim_target_modules"] == ["attn"]
    assert "optim_target_modules" not in training_setup(configuration(8, 8), cpu(), {}).training_arguments


@pytest.mark.parametrize("name", ["lomo", "adalomo", "galore_adamw_layerwise", "apollo_adamw_layerwise"])
def test_what_steps_in_the_backward_pass_does_not_accumulate(name: str) -> None:
    why = SETTING.forbidden[ACCUMULATION]
    assert "accumulate" in str(why(name, 2))
    assert why(name, 1) is None
    assert why("galore_adamw", 2) is None


def test_what_computes_adamw_is_told_from_what_learns_by_another_rule() -> None:
    assert {name for name in NAMES if "another rule" not in SETTING.learning.differs(name)} == {
        *("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"),
        *("adamw_torch_8bit", "adamw_torch_4bit", "adamw_torch_xla", "adamw_torch_npu_fused"),
    }
    assert "states of 8 or 4 bits" in SETTING.learning.differs("adamw_bnb_8bit")
    assert not SETTING.learning.differs("adamw_torch_fused")
    assert SETTING.learns_alike("adamw_torch", "paged_adamw_32bit")
    assert not SETTING.learns_alike("adamw_torch", "adamw_bnb_8bit")


def test_more_state_is_hungrier() -> None:
    assert SETTING.costs.needs_at_least_as_much("adamw_torch", "adamw_torch_fused")
    assert SETTING.costs.needs_at_least_as_much("adamw_torch_fused", "sgd")
    # Less state, but more on the way: neither is leaner in every configuration.
    assert not SETTING.costs.needs_at_least_as_much("adamw_torch_fused", "adamw_bnb_8bit")
    assert not SETTING.costs.needs_at_least_as_much("adamw_torch", "adafactor")
    assert not SETTING.costs.needs_at_least_as_much("lion_32bit", "sgd")
