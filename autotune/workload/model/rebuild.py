"""Models without their weights: building a plain transformers model again, and identifying models.

Weights are not needed to measure speed and memory: a model is sent to a probe as its class, config and dtype.
"""

import copy
import functools
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.workload.references import Comparison

MODEL_INIT, CONFIG, ITSELF, BUILT = "model_init", "its config", "itself", "its build function"
"""Origin of a user's model in each probe: the user's function, its class and config, the model itself, or the
function that builds the Trainer."""

OF_LIBRARIES = (
    *("training", "forward", "config", "generation_config", "model_tags", "warnings_issued", "hf_device_map"),
    *("gradient_checkpointing", "_gradient_checkpointing_func", "_require_grads_hook", "_require_grads_hooks"),
    *("_is_hf_initialized", "_weight_conversions", "_use_kernels", "_tp_plan", "_tp_size", "_device_mesh"),
    *("_is_accelerate_prepared", "_original_forward", "_parameters", "_buffers", "_modules"),
)
"""Attributes of layers and parameters that loading and training set, a Trainer sets again, or that are compared separately."""

COMES_WITH_TRAINING = ("accelerate", "transformers")
"""Packages that leave hooks and patches on a model that has been trained: it is the same model."""


@dataclass(frozen=True)
class FromConfig:
    """A `model_init`: a model of this class and config with random weights."""

    kind: Any
    config: Any
    dtype: str  #: of the weights, as `float32`
    frozen: frozenset[str] = frozenset()  #: names of the parameters that do not learn
    checkpointed: Mapping[str, Any] = field(default_factory=dict)  #: layer -> its checkpointing function
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: layer -> its plain attributes that differ

    def __call__(self) -> Any:
        """The model, made if it is trained: random values for billions of weights take minutes on a CPU."""
        import torch

        return self.on("cuda" if torch.cuda.is_initialized() else "cpu")

    def on(self, device: str) -> Any:
        """The model on this device of torch; on `meta` it has shapes and flags and no storage."""
        import torch

        with torch.device(device):
            model = self.kind._from_config(copy.deepcopy(self.config), dtype=getattr(torch, self.dtype))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        for name, function in self.checkpointed.items():
            layer = model.get_submodule(name)
            layer.gradient_checkpointing, layer._gradient_checkpointing_func = True, function
        for name, attributes in self.changed.items():
            vars(model.get_submodule(name)).update(attributes)
        return model.train()


class Prebuilt:
    """A `model_init` that returns a sent model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self) -> Any:
        return self.model


def made_by(model_init: Any) -> str:
    """MODEL_INIT, CONFIG or ITSELF."""
    return CONFIG if isinstance(model_init, FromConfig) else ITSELF if isinstance(model_init, Prebuilt) else MODEL_INIT


def called(model_init: Any) -> str:
    """A name for the maker of a model: for a partial the called function's, for an object its class's."""
    function = _function(model_init)
    name = str(getattr(function, "__name__", type(function).__name__))
    return "model" if name == "<lambda>" else name


def takes_trial(model_init: Any) -> bool:
    """True if this function must be given the trial of a hyper-parameter search, as a Trainer's `model_init` may be.

    Parameters of a class are its model's, never a trial.
    """
    needed = _required(model_init)
    is_class = isinstance(_function(model_init), type)
    return not is_class and bool(needed) and needed[0].kind is not inspect.Parameter.KEYWORD_ONLY


def _function(model_init: Any) -> Any:
    """The function that a partial calls in the end."""
    while isinstance(model_init, functools.partial):
        model_init = model_init.func
    return model_init


def arguments_needed(model_init: Any) -> list[str]:
    """Arguments without which nothing can be made: for a class all that have no default, for a function all but the trial."""
    return [parameter.name for parameter in _required(model_init)[1 if takes_trial(model_init) else 0 :]]


def _required(model_init: Any) -> list[inspect.Parameter]:
    try:
        parameters = inspect.signature(model_init).parameters
    except (TypeError, ValueError):  # not made by Python code
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each for each in parameters.values() if each.kind not in variadic and each.default is each.empty]


def rebuilt(model: Any, trainer_class: type) -> tuple[FromConfig | None, str]:
    """(a function that builds this model again, ""), or (None, reason why only the model itself will do).

    A patched `forward` counts as the model's unless the Trainer's package (TRL) or accelerate made it: in a child they
    make it again. Allocates nothing and initializes no device.
    """
    if reason := _not_plain(model, trainer_class):
        return None, reason
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in model.parameters() if weight.is_floating_point()}
    if len(dtypes) != 1:
        return None, "its weights are of several dtypes"
    frozen = frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    checkpointed = {
        name: getattr(layer, "_gradient_checkpointing_func", None)
        for name, layer in model.named_modules()
        if getattr(layer, "gradient_checkpointing", False)
    }
    model_init = FromConfig(type(model), copy.deepcopy(model.config), dtypes.pop(), frozen, checkpointed)
    try:
        fresh = model_init.on("meta")
    except Exception as error:  # whatever a model's code raises without storage
        return None, f"it cannot be built from its config: {type(error).__name__}"
    if _outline(fresh) != _outline(model):
        return None, "it was changed after it was built from its config"
    if "_loss_function" in vars(model):
        return None, "its loss function was set"
    if added := _added(model, fresh):
        return None, f"{added} was set on it"
    fresh_layers = dict(fresh.named_modules())
    changed = {
        name: {key: value for key, value in attributes.items() if usual.get(key) != value}
        for name, layer in model.named_modules()
        if (attributes := plain_attributes(layer)) != (usual := plain_attributes(fresh_layers[name]))
    }
    return replace(model_init, changed=changed), ""


def _added(model: Any, fresh: Any) -> str:
    """The first attribute of a layer or parameter that a fresh model has not, or with another value; plain ones aside."""
    import torch

    skipped = {*OF_LIBRARIES, *vars(torch.nn.Module())}
    comparison = Comparison(
        pair
        for kind in ("modules", "parameters")
        for pair in zip(getattr(model, kind)(), getattr(fresh, kind)(), strict=True)
    )
    for (name, layer), other in zip(model.named_modules(), fresh.modules(), strict=True):
        ours, others = (
            {key: part for key, part in vars(each).items() if key not in skipped} for each in (layer, other)
        )
        for key in {**ours, **others}:
            is_plain = key in plain_attributes(layer) and (key not in others or key in plain_attributes(other))
            if not is_plain and not (key in ours and key in others and _alike(ours[key], others[key], comparison)):
                return f"{name}.{key}".lstrip(".")
    return next((name for name, weight in model.named_parameters() if vars(weight).keys() - {*OF_LIBRARIES}), "")


def _alike(ours: Any, other: Any, comparison: Comparison) -> bool:
    """True for equal values, and for configs and devices of a kind: those of a model without storage are others."""
    import torch

    of_each = isinstance(ours, torch.device) or hasattr(ours, "to_dict")
    return type(ours) is type(other) if of_each else comparison.same(ours, other)


def plain_attributes(layer: Any) -> dict[str, Any]:
    """Numbers and texts that decide what a layer computes, as the share of its dropout."""
    return {
        name: value
        for name, value in vars(layer).items()
        if isinstance(value, (bool, int, float, str, type(None))) and name not in OF_LIBRARIES
    }


def _not_plain(model: Any, trainer_class: type) -> str:
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return "it is not a PreTrainedModel"
    if not type(model).__module__.startswith("transformers."):
        return "its class is not one of transformers"
    if getattr(model, "quantization_method", None) or getattr(model, "hf_quantizer", None):
        return "it is quantized"
    if getattr(model, "_hf_peft_config_loaded", False):
        return "it has an adapter"
    packages = {kind.__module__.partition(".")[0] for kind in trainer_class.__mro__} - {"__main__", "builtins"}
    for layer in model.modules():
        patched = own_forward(layer)
        if patched is not None and package_of(patched) not in (*packages, *COMES_WITH_TRAINING):
            return "the forward of one of its layers was replaced"
        if hooks_of(layer):
            return "one of its layers has hooks"
    return ""


def own_forward(layer: Any) -> Any:
    """Function that this layer computes instead of its class's `forward`; None if that is unchanged."""
    return layer.__dict__.get("forward")


def hooks_of(layer: Any) -> list[Any]:
    """Functions that run before and after the layer's forward and backward."""
    kinds = (layer._forward_pre_hooks, layer._forward_hooks, layer._backward_pre_hooks, layer._backward_hooks)
    return [hook for hooks in kinds for hook in hooks.values()]


def package_of(function: Any) -> str:
    """The package of its code; `functools.wraps` does not change that."""
    inner = getattr(function, "__func__", function)
    name: str = getattr(inner, "__globals__", {}).get("__name__", "")
    return name.partition(".")[0]


def _outline(model: Any) -> tuple[Any, ...]:
    """Kinds of layers, shapes of parameters and buffers, by name."""
    layers = [(name, type(layer)) for name, layer in model.named_modules()]
    buffers = [(name, tuple(buffer.shape), buffer.dtype) for name, buffer in model.named_buffers()]
    return layers, buffers, [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


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
    patches = [patch for patch in (own_forward(layer), *hooks_of(layer)) if patch is not None]
    return [_name(patch) for patch in patches if package_of(patch) not in COMES_WITH_TRAINING]


def _name(layer: Any) -> str:
    return str(getattr(layer, "__qualname__", type(layer).__qualname__))
