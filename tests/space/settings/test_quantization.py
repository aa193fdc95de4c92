"""Quantization."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.space.settings import Context
from autotune.space.settings.quantization import SETTING
from autotune.space.settings.setting import CostChange
from autotune.space.setup import training_setup
from autotune.workload.model.adapters import in_four_bits, linear_layers
from autotune.workload.model.build import count_parameters
from tests.makers import configuration, cpu, gpu, workload
from tests.space.settings.fakes import observed


def test_it_is_an_argument_of_the_model() -> None:
    fields = training_setup(configuration(8, lora="8", quantization="nf4"), gpu(), {}).model_arguments[
        "quantization_config"
    ]
    assert fields["load_in_4bit"] is True
    assert fields["bnb_4bit_quant_type"] == "nf4"
    assert fields["bnb_4bit_compute_dtype"] == "bfloat16"
    older = SETTING.apply("nf4", gpu(compute_capability=(7, 5))).model_arguments["quantization_config"]
    assert older["bnb_4bit_compute_dtype"] == "float16"
    assert SETTING.apply("none", gpu()).model_arguments == {"quantization_config": None}


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_read_back_from_weights_that_really_have_four_bits(kind: str) -> None:
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, vocab_size=64, **small)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.arange(8)[None]
    with torch.no_grad():
        before = model(ids).logits
        assert SETTING.read_back(observed(model=model)) == "none"
        packed = in_four_bits(model, SETTING.apply("nf4", cpu()).model_arguments["quantization_config"])
        after = packed(ids).logits
    assert SETTING.read_back(observed(model=packed)) == "nf4"
    away = (after - before).norm() / before.norm()
    assert 0.001 < away < 0.5, "rounded, and still the same weights"
    layers = [module for module in packed.modules() if type(module).__name__ == "Linear4bit"]
    assert layers
    assert all(layer.weight.numel() == layer.in_features * layer.out_features // 2 for layer in layers)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_expected_to_save_what_packing_really_saves(kind: str) -> None:
    small = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=512, **small))
    parameters, size = count_parameters(model)
    linear = sum(layer.weight.numel() for _, layer in linear_layers(model))
    of = workload(parameters=parameters, parameter_bytes=size, linear_parameters=linear)
    before = bytes_of(model)
    saved = before - bytes_of(in_four_bits(model, SETTING.apply("nf4", cpu()).model_arguments["quantization_config"]))
    assert linear > 0.5 * parameters
    assert -SETTING.costs.change("nf4", Context(cpu(), of)).peak_bytes == pytest.approx(saved, rel=0.005)
    assert SETTING.costs.change("none", Context(cpu(), of)) == CostChange()


def bytes_of(model: Any) -> int:
    """Of parameters and buffers, and of the scales of those that are packed."""
    tensors = [*model.parameters(), *model.buffers()]
    states = [parameter.quant_state for parameter in model.parameters() if type(parameter).__name__ == "Params4bit"]
    tensors += [scales for state in states for scales in (state.absmax, state.state2.absmax)]
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)
