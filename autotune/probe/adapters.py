"""Puts an adapter on a model, and its frozen weights into four bits."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from autotune.levers.lora_targets import ALL_LINEAR, ATTENTION, FIELDS


def adapter_targets(model: Any) -> dict[str, str | None]:
    """Value of the lever `lora_targets` -> None where layers of this model bear the names that PEFT is told, else why not."""
    named = any(re.fullmatch(FIELDS[ATTENTION], name) for name, _ in model.named_modules())
    why = f"no layer of {type(model).__name__} bears a name that projections of attention are known by"
    return {ALL_LINEAR: None, ATTENTION: None if named else why}


def adapted(model: Any, adapter: Mapping[str, Any]) -> Any:
    """The model with PEFT's adapter of these `LoraConfig` fields, all other weights frozen; itself where they are empty.

    Raises ValueError where no layer of the model is among the adapter's targets.
    """
    if not adapter:
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(**adapter)).train()


def in_four_bits(model: Any, asked: Mapping[str, Any]) -> Any:
    """The model with every linear layer but the output's in bitsandbytes' four bits, as `from_pretrained` would load it.

    asked: fields of `BitsAndBytesConfig`. Weights are packed where they lie; transformers itself packs only those that it
    loads from files.
    """
    import bitsandbytes
    from transformers import BitsAndBytesConfig
    from transformers.pytorch_utils import Conv1D

    config = BitsAndBytesConfig(**asked)
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, layer in list(model.named_modules()):
        is_conv = isinstance(layer, Conv1D)
        if layer is output or not (is_conv or type(layer) is torch.nn.Linear):
            continue
        weight = layer.weight.data.t().contiguous() if is_conv else layer.weight.data
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
