"""Kernels that only a GPU runs: of attention, of Liger, and those that torch compiles."""

from collections.abc import Callable
from typing import Any

import pytest

from autotune.core import Measurement, Workload
from autotune.space.settings.compile import GRAPHS
from tests.probe.probes import configuration

pytestmark = pytest.mark.gpu

Train = Callable[..., Measurement]


@pytest.fixture
def train(train_as_asked: Train, skip_without: Callable[..., None], workload_of: Callable[..., Workload]) -> Train:
    """`train(attention="eager")`: a Llama's few steps as asked; skips with the reason where a value cannot be used."""

    def train(model: str = "llama-mini", accumulation: int = 2, **settings: Any) -> Measurement:
        workload = workload_of(model, sequence_length=128)
        skip_without(workload, **settings)
        return train_as_asked(workload, configuration(4, accumulation, **settings))

    return train


@pytest.mark.parametrize("value", ["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_is_computed_as_asked(train: Train, value: str) -> None:
    assert train(attention=value, precision="bf16").settings["attention"] == value


def test_what_flex_attention_compiles_for_itself_is_no_compiling_of_the_model(train: Train) -> None:
    assert train(attention="flex_attention", precision="bf16", compile="none").settings["compile"] == "none"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", ["math", "efficient", "flash", "cudnn"])
def test_the_kernel_of_torch_s_attention_is_the_one_asked_for(train: Train, value: str, precision: str) -> None:
    if precision == "fp32" and value in ("flash", "cudnn"):
        pytest.skip("the kernel takes numbers of 16 bits only")
    # Of fewer keys than queries (Llama) the efficient kernel takes none in every torch: GPT-2 has as many.
    shown = train(
        "gpt2-mini" if value == "efficient" else "llama-mini", attention="sdpa", sdpa_kernel=value, precision=precision
    )
    assert shown.settings["sdpa_kernel"] == value


@pytest.mark.parametrize("value", ["none", "kernels", "kernels_and_loss"])
def test_liger_s_kernels_run_as_asked(train: Train, value: str) -> None:
    assert train(liger=value).settings["liger"] == value


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("value", ["regional", "default", "reduce_overhead", "max_autotune"])
def test_the_model_is_compiled_as_asked_and_its_seconds_are_told(train: Train, value: str, precision: str) -> None:
    # CUDA graphs overwrite the gradients of the micro-step before.
    compiled = train(accumulation=1 if value in GRAPHS else 2, compile=value, precision=precision)
    assert compiled.settings["compile"] == value
    assert compiled.compile_s > 0
