"""A micro-step's operations, counted on tensors without storage, against those counted by hand and by a real step."""

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, GPT2Config

from autotune.probe.arithmetic import count_arithmetic
from autotune.probe.layers import Repeats, find_repeats
from autotune.probe.models import model_outline
from autotune.workload import Workload

TOKENS = 16
CONFIG = {"n_embd": 32, "n_layer": 6, "n_head": 2, "n_positions": 32, "vocab_size": 64}
WORKLOAD = Workload("gpt2", "causal-lm", model_config={"model_type": "gpt2", **CONFIG}, sequence_length=TOKENS)
SAMPLE = {name: torch.ones(TOKENS, dtype=torch.int64) for name in ("input_ids", "labels")}


def test_operations_are_those_of_a_real_step() -> None:
    model = AutoModelForCausalLM.from_config(GPT2Config(**CONFIG))
    batch = {name: one[None] for name, one in SAMPLE.items()}
    with FlopCounterMode(display=False) as real:
        model(**batch).loss.backward()
    counted = count_arithmetic(WORKLOAD, GPT2Config(**CONFIG), SAMPLE, Repeats())
    assert counted["flops"] == real.get_total_flops()


def test_operations_are_about_six_for_each_weight_of_a_product_and_token() -> None:
    """Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1: attention apart."""
    width = CONFIG["n_embd"]
    weights = CONFIG["n_layer"] * 12 * width**2 + width * CONFIG["vocab_size"]
    counted = count_arithmetic(WORKLOAD, GPT2Config(**CONFIG), SAMPLE, Repeats())
    assert 1.0 <= counted["flops"] / (6 * weights * TOKENS) < 1.3


def test_few_layers_tell_of_all() -> None:
    config = GPT2Config(**CONFIG)
    repeats = find_repeats(config, model_outline(config, "causal-lm"), "causal-lm")
    assert repeats.counts == (6,)
    short = count_arithmetic(WORKLOAD, config, SAMPLE, repeats)
    whole = count_arithmetic(WORKLOAD, config, SAMPLE, Repeats())
    assert short == whole
    assert whole["kernels"] > 6 * 20
