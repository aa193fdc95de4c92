"""Puts an adapter on a model, and its frozen weights into four bits."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D


def adapted(model: Any, adapter: Mapping[str, Any]) -> Any:
    """The model with PEFT's adapter of these `LoraConfig` fields, all other weights frozen; itself where they are empty.

    Raises ValueError where no layer of the model is among the adapter's targets.
    """
    if not adapter:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(**adapter)).train()


def linear_layers(model: Any) -> list[tuple[str, Any]]:
    """(name, layer) of each that four bits are for: linear ones, GPT-2's own kind among them, but the output's."""
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    kinds = (torch.nn.Linear, Conv1D)
    return [(name, one) for name, one in model.named_modules() if type(one) in kinds and one is not output]


def in_four_bits(model: Any, asked: Mapping[str, Any]) -> Any:
    """The model with every linear layer but the output's in bitsandbytes' four bits, as `from_pretrained` would load it.

    asked: fields of `BitsAndBytesConfig`. Weights are packed where they lie; transformers itself packs only those that it
    loads from files.
    """
    import bitsandbytes
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(**asked)
    for name, layer in linear_layers(model):
        weight = layer.weight.data.t().contiguous() if isinstance(layer, Conv1D) else layer.weight.data
        packed = bitsandbytes.nn.Linear4bit(
            weight.shape[1],
            weight.shape[0],
            bias=layer.bias is not None,
            compute_dtype=config.bnb_4bit_compute_dtype,
            compress_statistics=config.bnb_4bit_use_double_quant,
            quant_type=config.bnb_4bit_quant_type,
            device="meta",
        )
        packed.bias = layer.bias
        packed.weight = bitsandbytes.nn.Params4bit(
            weight,
            requires_grad=False,
            quant_type=config.bnb_4bit_quant_type,
            compress_statistics=config.bnb_4bit_use_double_quant,
        ).to(weight.device)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, packed)
    model.is_loaded_in_4bit = True  # PEFT makes its layers by it
    return model
