"""Values of a model that was made without storage: random ones, layer by layer, or none where another rank has them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel


def drawn(model: Any, device: str, finish: Callable[[str], Any] = lambda place: None) -> Any:
    """One of transformers' models without storage, with random weights drawn on this device, layer by layer.

    finish: is given each layer's name before the next one's values are there, as when weights are loaded from files.
    """
    for owner, place in _repeated_layers(model, model):
        layer = model.get_submodule(place)
        layer.to_empty(device=device)
        with torch.no_grad():
            for module in reversed(list(layer.modules())):  # inner ones first: an outer one may overwrite them
                owner._init_weights(module)
        finish(place)
        for part in (*layer.modules(), *layer.parameters()):
            part._is_hf_initialized = True  # else transformers would draw them again
    for module in model.modules():
        if any(tensor.is_meta for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            module.to_empty(device=device, recurse=False)
    model.tie_weights()
    model.initialize_weights()
    return model


def without_values(model: Any) -> Any:
    """One of transformers' models without storage, with room for its weights in the host's memory that nothing touches.

    Of such room the kernel gives no page. accelerate fills the shards of all ranks from rank 0's weights, except buffers that
    no state dict has, which get their values here. On the meta device the optimizer would lose its parameters: accelerate
    (1.15, `_prepare_fsdp2`) finds them by their addresses.
    """
    model.to_empty(device="cpu")
    model.tie_weights()
    kept = model.state_dict(keep_vars=True)
    for tensor in kept.values():
        tensor._is_hf_initialized = True
    model.initialize_weights()
    return model


def _repeated_layers(module: Any, owner: Any, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """(the part of the model that can draw its weights, name) of each layer of the outermost lists of layers."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.ModuleList):
            yield from ((owner, f"{prefix}{name}.{place}") for place in range(len(child)))
        else:
            yield from _repeated_layers(
                child, child if isinstance(child, PreTrainedModel) else owner, f"{prefix}{name}."
            )
