"""Whether a compiled model hands torch's attention a mask, by how it is compiled and what its batch has."""

from importlib.metadata import version
from typing import Any

import pytest
import torch
from accelerate.utils import compile_regions
from packaging.version import Version
from transformers import AutoConfig, AutoModelForCausalLM

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
# Dynamo looks at the gradients of activations as it resumes behind a graph break.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
WHOLE_LEAVES_OUT = Version(version("transformers")) >= Version("5.18") and Version(torch.__version__) >= Version("2.12")
"""Whether a model that is compiled as a whole leaves a mask out that hides nothing."""


def masks_in(compiling: str, batch: dict[str, Any]) -> set[bool]:
    """Whether the attentions of the compiled graphs take a mask."""
    found = set()

    def read(graph: torch.fx.GraphModule, _: Any) -> Any:
        for node in graph.graph.nodes:
            if getattr(node.target, "__name__", "") == "scaled_dot_product_attention":
                found.add(node.kwargs.get("attn_mask") is not None)
        return graph.forward

    torch._dynamo.reset()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **GPT2), attn_implementation="sdpa")
    compiled = compile_regions(model, backend=read) if compiling == "regional" else torch.compile(model, backend=read)
    compiled(**batch, use_cache=False)
    return found


@pytest.mark.parametrize("compiling", ["regional", "default"])
def test_a_mask_that_hides_nothing_is_left_out_of_a_compiled_model_as_the_setting_says(compiling: str) -> None:
    tokens = torch.ones(2, 16, dtype=torch.long)
    batch = {"input_ids": tokens, "attention_mask": tokens}
    without = WithoutFullMask(lambda samples: dict(batch))([])
    leaves_out = compiling == "regional" or WHOLE_LEAVES_OUT
    assert masks_in(compiling, without) == {not leaves_out}
    assert masks_in(compiling, batch) == {compiling == "default"}  # compiled as a whole it cannot read the values
