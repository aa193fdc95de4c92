"""Settings that only a GPU can show: four-bit weights, copies beside the compute, and what DeepSpeed offloads."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.core import Environment, Measurement, Workload
from autotune.space.settings import SETTINGS, Context
from tests.probe.probes import configuration

pytestmark = pytest.mark.gpu

Train = Callable[..., Measurement]


@pytest.fixture
def train(train_as_asked: Train, workload_of: Callable[..., Workload]) -> Train:
    """`train("llama-mini", precision="bf16")`: a few steps on the card, whose settings must be as asked."""

    def train(model: str, **settings: Any) -> Measurement:
        return train_as_asked(workload_of(model, sequence_length=64), configuration(4, 2, **settings))

    return train


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", ["nf4", "fp4"])
def test_frozen_weights_in_four_bits_train_an_adapter(
    train: Train, cuda: Environment, value: str, precision: str
) -> None:
    if reason := cuda.quantizations[value] or cuda.precisions[precision]:
        pytest.skip(reason)
    packed = train("llama-mini", lora="8", quantization=value, precision=precision)
    plain = train("llama-mini", lora="8", quantization="none", precision=precision)
    assert packed.peak_bytes is not None
    assert plain.peak_bytes is not None
    assert packed.peak_bytes < plain.peak_bytes


def test_frozen_weights_in_16_bits_train_an_adapter_under_autocast(train: Train, cuda: Environment) -> None:
    if reason := cuda.precisions["bf16_frozen"]:
        pytest.skip(reason)
    frozen, plain = (train("llama-mini", lora="8", precision=value) for value in ("bf16_frozen", "bf16"))
    assert frozen.peak_bytes is not None
    assert plain.peak_bytes is not None
    assert frozen.peak_bytes <= plain.peak_bytes


@pytest.mark.parametrize("value", [True, False])
def test_the_host_waits_in_each_micro_step_or_not(train: Train, value: bool) -> None:
    train("gpt2-mini", logging_nan_inf_filter=value)


@pytest.mark.parametrize("compile", ["none", "default"])
def test_a_mask_that_hides_nothing_is_left_out(train: Train, compile: str) -> None:
    train("gpt2-mini", attention_mask="where_needed", compile=compile, precision="bf16")


@pytest.mark.parametrize("value", [False, True])
def test_copies_run_beside_the_compute_where_asked_to(train: Train, value: bool) -> None:
    train("gpt2-mini", pin_memory=True, non_blocking=value)


@pytest.mark.parametrize("value", ["eager", "batched_mm", "grouped_mm"])
def test_experts_are_computed_as_asked(
    train: Train, cuda: Environment, workload_of: Callable[..., Workload], value: str
) -> None:
    if reason := SETTINGS["experts"].unavailable(value, Context(cuda, workload_of("moe-mini", sequence_length=64))):
        pytest.skip(reason)
    train("moe-mini", experts=value)


@pytest.mark.parametrize("value", ["0", "1", "2", "3", "2_offload_optimizer", "3_offload_optimizer", "3_offload_all"])
def test_zero_trains_what_it_divides_or_offloads(
    train: Train, cuda: Environment, workload_of: Callable[..., Workload], value: str
) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("needs `pip install deepspeed`")
    large = replace(workload_of("llama-mini", sequence_length=64), parameters=cuda.total_memory_bytes)
    several = replace(cuda, device_count=2)
    assert SETTINGS["zero"].unavailable(value, Context(several, large)) is None
    train("llama-mini", zero=value, precision="bf16")
