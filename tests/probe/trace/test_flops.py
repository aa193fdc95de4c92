"""A micro-step's operations, counted on tensors without storage, against those counted by hand and by a real step."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, GPT2Config

from autotune.core import Workload
from autotune.probe.trace.cuda_kernels import cuda_ways
from autotune.probe.trace.flops import ATTENTION, count_arithmetic
from autotune.probe.trace.layers import Repeats, find_repeats
from autotune.workload.data.synthetic import SyntheticSamples
from autotune.workload.model.build import model_outline, plain_config
from autotune.workload.model.config import read_config

TOKENS = 16
CONFIG = {"n_embd": 32, "n_layer": 6, "n_head": 2, "n_positions": 32, "vocab_size": 64}
WORKLOAD = Workload("gpt2", "causal-lm", model_config={"model_type": "gpt2", **CONFIG}, sequence_length=TOKENS)
SAMPLE = {name: torch.ones(TOKENS, dtype=torch.int64) for name in ("input_ids", "labels")}


def test_operations_are_those_of_a_real_step() -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(**CONFIG))
    batch = {name: item[None] for name, item in SAMPLE.items()}
    with FlopCounterMode(display=False) as real:
        model(**batch).loss.backward()
    counted = count_arithmetic(WORKLOAD, GPT2Config(**CONFIG), SAMPLE, Repeats())
    assert counted["flops"] == real.get_total_flops()


def test_few_layers_tell_of_all() -> None:
    config = GPT2Config(**CONFIG)
    repeats = find_repeats(config, model_outline(config, "causal-lm"), "causal-lm")
    assert repeats.counts == (6,)
    short = count_arithmetic(WORKLOAD, config, SAMPLE, repeats)
    whole = count_arithmetic(WORKLOAD, config, SAMPLE, Repeats())
    assert short == whole
    assert whole["kernels"] > 6 * 20


LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def flops(model: str, task: str, tokens: int, adapter: dict[str, Any] | None = None, **fields: Any) -> float:
    """Of one sample of a built-in model; fields of its config may be others."""
    config, _ = read_config(model, False)
    for name, value in fields.items():
        setattr(config, name, value)
    workload = Workload(model, task, model_config=plain_config(config), sequence_length=tokens)
    repeats = find_repeats(config, model_outline(config, task), task)
    sample = SyntheticSamples(config, task, tokens, 1, seed=0)[0]
    # Without a mask of ones, which `_values_guessed` drops where samples are traced.
    sample = {name: item for name, item in sample.items() if name != "attention_mask"}
    return count_arithmetic(workload, config, sample, repeats, adapter)["flops"]


@pytest.mark.parametrize(
    ("model", "task", "tokens", "expected"),
    [
        ("bert-large", "sequence-classification", 512, 1.005e12),
        ("gpt2", "causal-lm", 1024, 0.876e12),
        ("llama-1b", "causal-lm", 2048, 16.8e12),
        ("llama-1b", "causal-lm", 4096, 37.0e12),
    ],
)
def test_known_models_cost_what_is_written_of_them(model: str, task: str, tokens: int, expected: float) -> None:
    """Six for each weight and token, and 12 x layers x width x tokens for each token's attention, not halved where causal
    (Chowdhery et al., PaLM, 2022, appendix B). Llama has no dropout: its attention is one fused operation."""
    assert flops(model, task, tokens) == pytest.approx(expected, rel=0.02)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks by a deprecated name
def test_frozen_weights_cost_four_for_each_weight_and_token() -> None:
    """Llama 8B: 4 x (8.03 - 0.525) billion, attention, and six for each of the adapter's own. The reference's 31.6 GFLOP a token
    halves the attention, of which a causal kernel skips half; here it is counted whole."""
    tokens, width, layers = 2048, 4096, 32
    each = flops("llama-8b", "causal-lm", tokens, LORA) / tokens
    attention = 12 * layers * width * tokens
    assert each - attention / 2 == pytest.approx(31.6e9, rel=0.02)
    assert each == pytest.approx(33.3e9, rel=0.02)
    assert each < 0.7 * flops("llama-8b", "causal-lm", tokens) / tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_kernel_of_attention_is_counted_alike_and_nothing_that_it_computes_again(dtype: torch.dtype) -> None:
    heads, tokens, width = 4, 32, 16
    for on_cuda in (False, True):
        with FakeTensorMode(), cuda_ways(on_cuda), FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
            parts = [torch.empty(2, heads, tokens, width, dtype=dtype, requires_grad=True) for _ in range(3)]
            torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).sum().backward()
        assert counter.get_total_flops() == 6 * 2 * 2 * heads * tokens**2 * width, on_cuda
