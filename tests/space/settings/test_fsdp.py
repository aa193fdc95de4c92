"""FSDP."""

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.core.configuration import Configuration
from autotune.space.settings import Context
from autotune.space.settings.fsdp import SETTING
from autotune.space.setup import training_arguments
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed

TWO = gpu(device_count=2)


@pytest.mark.parametrize(
    ("base", "means"),
    [
        ({}, "none"),
        ({"fsdp": ""}, "none"),
        ({"fsdp": True}, "full_shard"),
        ({"fsdp": "full_shard auto_wrap"}, "full_shard"),
        ({"fsdp": "hybrid_shard auto_wrap"}, "full_shard"),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, "shard_grad_op"),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, "shard_grad_op"),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": "true"}}, "full_shard"),
    ],
)
def test_the_user_s_own_is_read_in_every_spelling(base: dict[str, Any], means: str) -> None:
    assert SETTING.from_user(Context(TWO, workload(), base)) == means


@pytest.mark.parametrize("value", ["none", "full_shard", "shard_grad_op"])
def test_what_is_applied_means_itself(value: str) -> None:
    assert SETTING.from_user(Context(TWO, workload(), SETTING.apply(value, TWO).training_arguments)) == value


def test_without_it_nothing_of_the_user_s_remains() -> None:
    base = {"fsdp": "full_shard", "fsdp_config": {"min_num_params": 10}}
    made = Configuration.exact(8, 4, {"data_parallel_size": 2, "fsdp": "none"})
    fields = training_arguments(made, TWO, base)
    assert fields["fsdp"] == ""
    assert "fsdp_config" not in fields


def test_it_needs_several_gpus() -> None:
    for value in ("full_shard", "shard_grad_op"):
        assert SETTING.unavailable(value, Context(TWO, workload())) is None
        assert "one is visible" in str(SETTING.unavailable(value, Context(gpu(device_count=1), workload())))
        assert "on a CPU" in str(SETTING.unavailable(value, Context(cpu(), workload())))
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None


def test_it_means_something_on_several_ranks_only() -> None:
    assert SETTING.active_if is not None
    setting, means = SETTING.active_if
    assert setting == "data_parallel_size"
    assert (means(1), means(2)) == (False, True)


class FSDPModule:
    """As torch names what `fully_shard` makes of a module."""


class Sharded(FSDPModule):
    pass


def test_it_is_read_back_from_the_modules_that_train() -> None:
    def shown(module: object, **plugin: Any) -> Any:
        one = observed(model=SimpleNamespace(modules=lambda: [module]))
        one.trainer.accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(**plugin)))
        return SETTING.read_back(one)

    assert shown(object()) == "none"
    assert shown(Sharded(), reshard_after_forward=True) == "full_shard"
    assert shown(Sharded(), reshard_after_forward=False) == "shard_grad_op"
    assert shown(Sharded(), reshard_after_forward="ShardingStrategy.FULL_SHARD") == "full_shard"


def test_what_is_kept_whole_is_hungrier() -> None:
    assert SETTING.needs_at_least_as_much("none", "shard_grad_op")
    assert SETTING.needs_at_least_as_much("shard_grad_op", "full_shard")
    assert not SETTING.needs_at_least_as_much("full_shard", "shard_grad_op")


def test_sharding_is_expected_to_save_what_it_does_not_keep() -> None:
    facts = workload(gradient_bytes=100, parameter_bytes=60)
    assert SETTING.change("none", Context(TWO, facts)).peak_bytes == 0
    assert SETTING.change("shard_grad_op", Context(TWO, facts)).peak_bytes == -150
    assert SETTING.change("full_shard", Context(TWO, facts)).peak_bytes == -180
