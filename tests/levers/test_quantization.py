"""Quantization."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.levers.quantization import LEVER
from autotune.probe.adapters import in_four_bits
from autotune.training_arguments import model_arguments
from tests.levers.fakes import observed
from tests.makers import configuration, cpu, gpu, workload

VERSIONS = {"peft": "0.21.2", "bitsandbytes": "0.50"}


def test_it_is_an_argument_of_the_model() -> None:
    fields = model_arguments(configuration(8, lora="8", quantization="nf4"), gpu())["quantization_config"]
    assert fields["load_in_4bit"] is True
    assert fields["bnb_4bit_quant_type"] == "nf4"
    assert fields["bnb_4bit_compute_dtype"] == "bfloat16"
    older = LEVER.apply("nf4", gpu(compute_capability=(7, 5))).model_arguments["quantization_config"]
    assert older["bnb_4bit_compute_dtype"] == "float16"
    assert LEVER.apply("none", gpu()).model_arguments == {"quantization_config": None}


@pytest.mark.parametrize("value", ["nf4", "fp4"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_read_back_from_weights_that_really_have_four_bits(kind: str, value: str) -> None:
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, vocab_size=64, **small)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        before = model(ids).logits
        assert LEVER.read_back(observed(model=model)) == "none"
        packed = in_four_bits(model, LEVER.apply(value, cpu()).model_arguments["quantization_config"])
        after = packed(ids).logits
    assert LEVER.read_back(observed(model=packed)) == value
    away = (after - before).norm() / before.norm()
    assert 0.001 < away < 0.5, "rounded, and still the same weights"
    layers = [one for one in packed.modules() if type(one).__name__ == "Linear4bit"]
    assert layers
    assert all(one.weight.numel() == one.in_features * one.out_features // 2 for one in layers)


def test_it_is_unavailable_as_the_device_showed_and_without_its_libraries() -> None:
    works = {"nf4": None, "fp4": "no kernel"}
    assert LEVER.unavailable("none", cpu(), workload()) is None
    assert LEVER.unavailable("nf4", gpu(versions=VERSIONS, quantizations=works), workload()) is None
    assert LEVER.unavailable("fp4", gpu(versions=VERSIONS, quantizations=works), workload()) == "no kernel"
    assert "not tried" in (LEVER.unavailable("nf4", cpu(versions=VERSIONS), workload()) or "")
    assert "install bitsandbytes" in (LEVER.unavailable("nf4", gpu(versions={}), workload()) or "")
    alone = gpu(versions={"bitsandbytes": "0.50"}, quantizations=works)
    assert "install peft" in (LEVER.unavailable("nf4", alone, workload()) or "")


def test_it_means_something_below_an_adapter_only() -> None:
    assert LEVER.needs is not None
    name, means = LEVER.needs
    assert (name, means("8"), means("none")) == ("lora", True, False)
    assert LEVER.hungrier("none", "nf4")
