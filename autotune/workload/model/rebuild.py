"""A plain transformers model travels as its class, config and dtype: weights are not needed to measure speed and memory."""

import copy
import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL_INIT, CONFIG, ITSELF = "model_init", "its config", "itself"
"""What a caller's own model is made by in each probe: the caller's function, its class and config, or nothing but it."""


@dataclass(frozen=True)
class FromConfig:
    """A `model_init`: a model of this class and config with random weights of this dtype (`float32`).

    frozen: names of the parameters that do not learn. forgetting: name of a layer for which activation checkpointing was
    switched on -> the function that it calls for it.
    """

    kind: Any
    config: Any
    dtype: str
    frozen: frozenset[str] = frozenset()
    forgetting: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """The model, made where it is trained: random values for billions of weights take minutes on a CPU."""
        import torch

        return self.on("cuda" if torch.cuda.is_initialized() else "cpu")

    def on(self, device: str) -> Any:
        """The model on this device of torch; on `meta` it has shapes and flags and no storage."""
        import torch

        with torch.device(device):
            model = self.kind._from_config(copy.deepcopy(self.config), dtype=getattr(torch, self.dtype))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        for name, function in self.forgetting.items():
            layer = model.get_submodule(name)
            layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, function
        return model.train()


class Prebuilt:
    """A `model_init` that hands over a model that was sent."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self) -> Any:
        return self.model


def made_by(model_init: Any) -> str:
    """MODEL_INIT, CONFIG or ITSELF."""
    return CONFIG if isinstance(model_init, FromConfig) else ITSELF if isinstance(model_init, Prebuilt) else MODEL_INIT


def called(model_init: Any) -> str:
    """A name for what makes a model: of a partial that of what it calls, of an object that of its class."""
    while isinstance(model_init, functools.partial):
        model_init = model_init.func
    name = str(getattr(model_init, "__name__", type(model_init).__name__))
    return "model" if name == "<lambda>" else name


def takes_trial(model_init: Any) -> bool:
    """Whether this function must be given the trial of a hyper-parameter search, as a Trainer's `model_init` may be.

    A class's own parameters are its model's, never a trial.
    """
    made = model_init
    while isinstance(made, functools.partial):
        made = made.func
    needed = _required(model_init)
    return not isinstance(made, type) and bool(needed) and needed[0].kind is not inspect.Parameter.KEYWORD_ONLY


def arguments_needed(model_init: Any) -> list[str]:
    """Arguments without which nothing can be made: of a class all that have no default, of a function all but the trial."""
    return [one.name for one in _required(model_init)[1 if takes_trial(model_init) else 0 :]]


def _required(model_init: Any) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(model_init).parameters
    except (TypeError, ValueError):  # made by no Python code
        return []
    named = [one for one in parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [one for one in named if one.default is one.empty]


def rebuilt(model: Any, trainer_class: type) -> tuple[FromConfig | None, str]:
    """(how to build this model again, ""), or (None, why only the model itself will do).

    A patched `forward` counts as the model's own unless the Trainer's package (TRL) or accelerate made it: in a child they
    make it again. Nothing is allocated, and no device wakes.
    """
    if reason := _not_plain(model, trainer_class):
        return None, reason
    dtypes = {str(one.dtype).removeprefix("torch.") for one in model.parameters() if one.is_floating_point()}
    if len(dtypes) != 1:
        return None, "its weights are of several dtypes"
    frozen = frozenset(name for name, one in model.named_parameters() if not one.requires_grad)
    forgetting = {
        name: getattr(layer, "_gradient_checkpointing_func", None)
        for name, layer in model.named_modules()
        if getattr(layer, "gradient_checkpointing", False)
    }
    made = FromConfig(type(model), copy.deepcopy(model.config), dtypes.pop(), frozen, forgetting)
    try:
        fresh = made.on("meta")
    except Exception as error:  # whatever a model's code raises without storage
        return None, f"it cannot be built from its config: {type(error).__name__}"
    if _outline(fresh) != _outline(model):
        return None, "it was changed after it was built from its config"
    return made, ""


def _not_plain(model: Any, trainer_class: type) -> str:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return "it is no PreTrainedModel"
    if not type(model).__module__.startswith("transformers."):
        return "its class is not one of transformers"
    if getattr(model, "quantization_method", None) or getattr(model, "hf_quantizer", None):
        return "it is quantized"
    if getattr(model, "_hf_peft_config_loaded", False):
        return "it has an adapter"
    makers = {one.__module__.partition(".")[0] for one in trainer_class.__mro__} - {"__main__", "builtins"}
    for one in model.modules():
        patched = own_forward(one)
        if patched is not None and package_of(patched) not in makers | {"accelerate", "transformers"}:
            return "the forward of one of its layers was replaced"
        if hooks_of(one):
            return "one of its layers has hooks"
    return ""


def own_forward(layer: Any) -> Any:
    """What this one layer computes instead of its class's `forward`; None where that is as it was."""
    return layer.__dict__.get("forward")


def hooks_of(layer: Any) -> list[Any]:
    """What runs before and after the layer's forward and backward."""
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    return [one for kind in kinds for one in kind.values()]


def package_of(function: Any) -> str:
    """The package whose code it is; `functools.wraps` does not change that."""
    inner = getattr(function, "__func__", function)
    name: str = getattr(inner, "__globals__", {}).get("__name__", "")
    return name.partition(".")[0]


def _outline(model: Any) -> tuple[Any, ...]:
    """Kinds of layers and shapes of parameters, by name."""
    layers = [(name, type(one)) for name, one in model.named_modules()]
    return layers, [(name, tuple(one.shape)) for name, one in model.named_parameters()]
