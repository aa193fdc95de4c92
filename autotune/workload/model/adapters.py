"""Adapters on a model, and its frozen weights in four bits."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers.pytorch_utils import Conv1D

from autotune.space.settings.lora_targets import ALL_LINEAR, ATTENTION, FIELDS
from autotune.workload.model.values import drawn


def adapter_targets(model: Any) -> dict[str, str | None]:
    """Value of the setting `lora_targets` -> None if layers of this model have the names that PEFT gets, else the reason."""
    named = any(re.fullmatch(FIELDS[ATTENTION], name) for name, _ in model.named_modules())
    reason = f"no layer of {type(model).__name__} has a name that projections of attention usually have"
    return {ALL_LINEAR: None, ATTENTION: None if named else reason}


def adapted(model: Any, adapter: Mapping[str, Any]) -> Any:
    """The model with PEFT's adapter of these `LoraConfig` fields, all other weights frozen; itself if they are empty.

    Raises ValueError if no layer of the model is among the adapter's targets.
    """
    if not adapter:
        return model
    from peft import LoraConfig, get_peft_model

    fake = any(isinstance(parameter, FakeTensor) for parameter in model.parameters())
    with _converted_by_replacing() if fake else contextlib.nullcontext():
        return get_peft_model(model, LoraConfig(**adapter)).train()


@contextlib.contextmanager
def _converted_by_replacing() -> Iterator[None]:
    """Inside, `Module.to` makes new parameters: it would swap parameters without storage, which torch refuses for fake ones."""

    def apply(module: torch.nn.Module, convert: Any, recurse: bool = True) -> torch.nn.Module:
        for inner in module.children() if recurse else ():
            apply(inner, convert)
        with torch.no_grad():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = torch.nn.Parameter(convert(weight), weight.requires_grad)
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else convert(buffer)
        return module

    own = torch.nn.Module._apply
    torch.nn.Module._apply = apply
    try:
        yield
    finally:
        torch.nn.Module._apply = own


def made_in_four_bits(model: Any, config: Mapping[str, Any], device: str) -> Any:
    """One of transformers' models without storage, with random weights on this device, and as `in_four_bits` makes it.

    Each layer is packed before the next one's float32 is there.
    """
    linear = [name for name, _ in linear_layers(model)]  # names only: a reference would keep a layer's float32 weights

    def pack(place: str) -> None:
        _pack(model, [name for name in linear if name.startswith(f"{place}.")], config)

    return in_four_bits(drawn(model, device, pack), config)


def linear_layers(model: Any) -> list[tuple[str, Any]]:
    """(name, layer) of all layers for four bits.

    Linear ones, GPT-2's kind too, except the output's and the layers that the model keeps in float32 (T5 casts to the dtype
    of one).
    """
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    float32 = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) in (torch.nn.Linear, Conv1D) and layer is not output and not float32 & {*name.split(".")}
    ]


def in_four_bits(model: Any, config: Mapping[str, Any]) -> Any:
    """The model with its `linear_layers` in bitsandbytes' four bits, as `from_pretrained` would load it.

    config: fields of `BitsAndBytesConfig`. Weights are packed in place; transformers itself packs only weights that it
    loads from files.
    """
    _pack(model, [name for name, _ in linear_layers(model)], config)
    model.is_loaded_in_4bit = True  # PEFT makes its layers by it
    return model


def _pack(model: Any, names: Iterable[str], config: Mapping[str, Any]) -> None:
    import bitsandbytes
    from transformers import BitsAndBytesConfig

    options = BitsAndBytesConfig(**config)
    for name in names:
        layer = model.get_submodule(name)
        weight = layer.weight.data.t().contiguous() if isinstance(layer, Conv1D) else layer.weight.data
        packed = bitsandbytes.nn.Linear4bit(
            weight.shape[1],
            weight.shape[0],
            bias=layer.bias is not None,
            compute_dtype=options.bnb_4bit_compute_dtype,
            compress_statistics=options.bnb_4bit_use_double_quant,
            quant_type=options.bnb_4bit_quant_type,
            device="meta",
        )
        packed.bias = layer.bias
        packed.weight = bitsandbytes.nn.Params4bit(
            weight,
            requires_grad=False,
            quant_type=options.bnb_4bit_quant_type,
            compress_statistics=options.bnb_4bit_use_double_quant,
        ).to(weight.device)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, packed)
