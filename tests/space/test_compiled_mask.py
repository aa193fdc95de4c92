"""Whether a compiled model hands torch's attention a mask, by how it is compiled and what its batch has."""

from importlib.metadata import version
from typing import Any

import pytest
import torch
from accelerate.utils import compile_regions
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from autotune.space.collators import WithoutFullMask

GPT2 = {
    "vocab_size": 160,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Dynamo looks at the gradients of activations as it resumes behind a graph break, and likes a later Python than 3.13.0.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
]
BERT = {"vocab_size": 160, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2}
MODELS = {"gpt2": (AutoModelForCausalLM, GPT2), "bert": (AutoModelForMaskedLM, BERT)}
LEAVE_OUT = Version(version("transformers")) >= Version("5.18") and Version(torch.__version__) >= Version("2.13")
"""Versions with which a model that is compiled as a whole, and is not causal, leaves out a mask that hides nothing."""


def masks_in(name: str, compiling: str, batch: dict[str, Any]) -> set[bool]:
    """Whether the attentions of the compiled graphs take a mask."""
    found = set()

    def read(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            if getattr(node.target, "__name__", "") == "scaled_dot_product_attention":
                found.add(node.kwargs.get("attn_mask") is not None)
        return graph.forward

    torch._dynamo.reset()
    kind, fields = MODELS[name]
    model = kind.from_config(AutoConfig.for_model(name, **fields), attn_implementation="sdpa")
    compiled = compile_regions(model, backend=read) if compiling == "regional" else torch.compile(model, backend=read)
    compiled(**batch, **({"use_cache": False} if name == "gpt2" else {}))
    return found


@pytest.mark.parametrize(
    ("name", "compiling"),
    [
        ("gpt2", "regional"),
        pytest.param("bert", "regional", marks=pytest.mark.nightly),
        pytest.param("gpt2", "default", marks=pytest.mark.nightly),
        pytest.param("bert", "default", marks=pytest.mark.nightly),
    ],
)
def test_a_mask_that_hides_nothing_is_left_out_of_a_compiled_model_as_documented(name: str, compiling: str) -> None:
    tokens = torch.ones(2, 16, dtype=torch.long)
    batch = {"input_ids": tokens, "attention_mask": tokens}
    without = WithoutFullMask(lambda samples: dict(batch))([])
    leaves_out = compiling == "regional" or (name == "bert" and LEAVE_OUT)
    assert masks_in(name, compiling, without) == {not leaves_out}
    assert masks_in(name, compiling, batch) == {compiling == "default"}  # compiled as a whole it cannot read the values
