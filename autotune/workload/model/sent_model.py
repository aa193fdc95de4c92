"""Models without their weights, as trials get them, and the identity of a model.

Weights are not needed to measure speed and memory: a plain model of transformers is sent without them.
"""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIG, ITSELF, BUILT = "its config", "itself", "its build function"
"""Origin of a user's model in each trial: its layers with random weights as its config has them, the model itself, or the
function that builds the Trainer."""

COMES_WITH_TRAINING = ("accelerate", "transformers")
"""Packages that leave hooks and patches on a model that has been trained: it is the same model."""


@dataclass(frozen=True)
class WithoutWeights:
    """A `model_init`: a model of transformers that is sent without its weights, with those of a new one of its config.

    packages: their patches of a `forward` are left out, because a Trainer of theirs makes them again.
    """

    model: Any
    packages: frozenset[str]

    def __call__(self) -> Any:
        """The model, made if it is trained: random values for billions of weights take minutes on a CPU."""
        import torch

        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        for layer, other in zip(self.model.modules(), _fresh(self.model, device).modules(), strict=True):
            for name, buffer in layer._buffers.items():
                layer._buffers[name] = None if buffer is None else buffer.to(device)
            for name, weight in other._parameters.items():
                if weight is not None:
                    sent = layer._parameters[name]
                    vars(weight.requires_grad_(sent.requires_grad)).update(vars(sent))
                    layer._parameters[name] = weight
            if package_of(vars(layer).get("forward")) in self.packages:
                del layer.forward
        return self.model


@dataclass(frozen=True)
class Prebuilt:
    """A `model_init` that returns a sent model."""

    model: Any

    def __call__(self) -> Any:
        return self.model


def called(build: Any) -> str:
    """The name of a function, or of the class of an object that is called."""
    return str(getattr(build, "__name__", type(build).__name__)).strip("<>")


def empty_parameter(shape: tuple[int, ...], dtype: Any, requires_grad: bool, attributes: Mapping[str, Any]) -> Any:
    """A parameter without storage."""
    import torch

    weight = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad)
    vars(weight).update(attributes)
    return weight


def without_weights(model: Any, trainer_class: type) -> tuple[WithoutWeights | None, str]:
    """(what makes this model with random weights, ""), or (None, reason why only the model itself will do).

    Allocates nothing and initializes no device.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) or not type(model).__module__.startswith("transformers."):
        return None, "its class is not one of transformers"
    if len({weight.dtype for weight in model.parameters() if weight.is_floating_point()}) != 1:
        return None, "its weights are of several dtypes"
    try:
        fresh = _fresh(model, "meta")
    except Exception as error:  # whatever a model's code raises without storage
        return None, f"it cannot be built from its config: {type(error).__name__}"
    if _structure(fresh) != _structure(model):
        return None, "it was changed after it was built from its config"
    packages = {kind.__module__.partition(".")[0] for kind in trainer_class.__mro__} - {"__main__", "builtins"}
    return WithoutWeights(model, frozenset({*packages, *COMES_WITH_TRAINING})), ""


def _fresh(model: Any, device: str) -> Any:
    """A new model of the class, config and dtype of this one."""
    import torch

    dtype = next(weight.dtype for weight in model.parameters() if weight.is_floating_point())
    with torch.device(device):
        return type(model)._from_config(copy.deepcopy(model.config), dtype=dtype)


def _structure(model: Any) -> tuple[Any, ...]:
    """Kinds of layers and shapes of parameters, by name."""
    layers = [(name, type(layer)) for name, layer in model.named_modules()]
    return layers, [(name, tuple(weight.shape)) for name, weight in model.named_parameters()]


def package_of(function: Any) -> str:
    """The package of its code, also of what `functools.wraps` decorates; empty for None."""
    inner = getattr(function, "__func__", function)
    name: str = getattr(inner, "__globals__", {}).get("__name__", "")
    return name.partition(".")[0]


def layers_digest(model: Any) -> str:
    """Sixteen digits that identify the model's layers, the same in every process.

    Others if a layer, its attention, its patches, or the shape, dtype or learning of a parameter is another: no config of a
    user's model has these.
    """
    layers = [
        (
            name,
            _name(layer),
            str(getattr(getattr(layer, "config", None), "_attn_implementation", None) or ""),
            _patches(layer),
        )
        for name, layer in model.named_modules()
    ]
    parameters = [
        (name, tuple(weight.shape), str(weight.dtype), weight.requires_grad)
        for name, weight in model.named_parameters()
    ]
    return hashlib.sha256(repr((layers, parameters)).encode()).hexdigest()[:16]


def _patches(layer: Any) -> list[str]:
    """Names of functions that replace the layer's forward, or run before and after its forward and backward."""
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    patches = [vars(layer).get("forward"), *(hook for hooks in kinds for hook in hooks.values())]
    return [_name(patch) for patch in patches if patch is not None and package_of(patch) not in COMES_WITH_TRAINING]


def _name(layer: Any) -> str:
    return str(getattr(layer, "__qualname__", type(layer).__qualname__))
