"""Activation checkpointing: activations are dropped in the forward pass and computed again in the backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting, WorkFactors, one_of

_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"use_reentrant": False},
    "every_2nd": {"use_reentrant": False, "every_n_layers": 2},
    "every_3rd": {"use_reentrant": False, "every_n_layers": 3},
    "offload": {"use_reentrant": False, "offload": True},
    "full_reentrant": {"use_reentrant": True},
}
"""Arguments for transformers' `activation_checkpointing_enable`: torch advises against the reentrant way, but it keeps less
to compare the recomputed tensors by."""

VALUES = ("none", *_OPTIONS)

OPTIONS = ("every_n_layers", "offload")
"""Options that not every version of transformers has (`Environment.checkpointing_options`)."""

ALIASES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Older name of a field -> the newer one, if `TrainingArguments` has both."""

_MEMORY_ORDER = {"none": 3, "every_3rd": 2, "every_2nd": 1, "full": 0}
"""The more layers are checkpointed, the less is kept."""

INPUT_GRADIENT_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")
"""Names of the hooks on the input embeddings by which transformers and PEFT let gradients through a checkpointed layer
whose weights are frozen (`PreTrainedModel.enable_input_require_grads`, `peft.prepare_model_for_kbit_training`)."""


def field_name(environment: Environment) -> str:
    """`activation_checkpointing` if this transformers knows it, else its older name."""
    fields = environment.training_argument_fields
    return "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"


def as_newer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under the newer names alone, as a `TrainingArguments` reads them that has both.

    An older name counts if the newer one is not set.
    """
    fields = {name: value for name, value in arguments.items() if name not in ALIASES}
    older = {newer: arguments[older] for older, newer in ALIASES.items() if older in arguments}
    return fields | {name: value for name, value in older.items() if fields.get(name) is None}


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of checkpointing that training arguments hold under either name; raises ValueError for text."""
    options = arguments.get("activation_checkpointing_kwargs") or arguments.get("gradient_checkpointing_kwargs") or {}
    if not isinstance(options, Mapping):
        raise ValueError(f"{options!r} is not a table of options")
    return dict(options)


def switch_off(model: Any) -> None:
    """Make a built model keep its activations, whatever switched checkpointing on and whatever wraps the model.

    Training arguments without checkpointing leave a model as it is. The hooks that let gradients through checkpointed
    layers go too: from a model that was checkpointed, and from one with adapters, where they have no other purpose.
    """
    modules = list(model.modules())
    flagged = [module for module in modules if getattr(module, "gradient_checkpointing", False)]
    for module in flagged:
        module.gradient_checkpointing = False
    if flagged or hasattr(model, "peft_config"):
        for module in modules:
            for key, hook in list(module._forward_hooks.items()):
                if getattr(hook, "__name__", "") in INPUT_GRADIENT_HOOKS:
                    del module._forward_hooks[key]


def _from_user(context: Context) -> str:
    arguments = context.arguments
    if not (arguments.get("activation_checkpointing") or arguments.get("gradient_checkpointing")):
        return one_of(*VALUES)(context.workload.checkpointing or "none")
    names = ("use_reentrant", *OPTIONS)  # torch's other options change no more than checks
    options = _OPTIONS["full"] | {name: option for name, option in options_of(arguments).items() if name in names}
    if not (value := _named(options)):
        raise ValueError(f"the options {options} are not one of {', '.join(_OPTIONS)}")
    return value


def _named(options: Mapping[str, Any]) -> str:
    """The value of these options; empty for none of them."""
    defaults = {"every_n_layers": 1, "offload": False}
    return next((value for value, own in _OPTIONS.items() if {**defaults, **own} == {**defaults, **options}), "")


def _apply(value: Value, environment: Environment) -> Effect:
    name = field_name(environment)
    if value == "none":
        return Effect({name: False}, contradicts=(f"{name}_kwargs",))
    return Effect({name: True, f"{name}_kwargs": dict(_OPTIONS[str(value)])})


def enabled_on(model: Any, every_n_layers: Sequence[int] = (1, 2, 3)) -> str:
    """The value that is on for this model, by the layers that are checkpointed and the function that they call for it.

    If it is none of the values, a description. every_n_layers: the distances to try in turn.
    """
    modules = list(model.modules())
    flagged = [module for module in modules if getattr(module, "gradient_checkpointing", False)]
    if not flagged:
        return "none"
    on = [
        bool(module.gradient_checkpointing)
        for module in modules
        if any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__)
    ]
    distance = next((n for n in every_n_layers if on == [at % n == 0 for at in range(len(on))]), None)
    if distance is None:
        return f"{sum(on)} of {len(on)} layers"
    function = getattr(flagged[-1], "_gradient_checkpointing_func", None)
    shown = {
        "use_reentrant": bool(getattr(function, "keywords", {}).get("use_reentrant", False)),
        "every_n_layers": distance if on else 1,
        "offload": getattr(getattr(function, "func", None), "__name__", "checkpoint") != "checkpoint",
    }
    return _named(shown) or ", ".join(f"{name} {value}" for name, value in shown.items())


def _read_back(observed: Observed) -> str:
    distance = int(options_of(vars(observed.trainer.args)).get("every_n_layers", 1))
    return enabled_on(observed.trainer.model, (distance,))


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    workload = context.workload
    if workload.supports_checkpointing is False:
        text = f"{workload.architecture or 'this model'} does not support activation checkpointing"
        return Exclusion(ExclusionKind.MODEL, detail=text)
    for option in OPTIONS:
        if option in _OPTIONS[str(value)] and option not in context.environment.checkpointing_options:
            text = f"this transformers' checkpointing has no option {option}: a later one has"
            return Exclusion(ExclusionKind.LIBRARY, detail=text)
    if value == "offload" and context.environment.is_cpu:
        return Exclusion(ExclusionKind.DEVICE, detail="on a CPU the activations are in the host's memory already")
    return None


def _needs_at_least_as_much(value: Value, other: Value) -> bool:
    if value in (other, "none"):
        return True
    return {value, other} <= _MEMORY_ORDER.keys() and _MEMORY_ORDER[str(value)] > _MEMORY_ORDER[str(other)]


AGAIN = 4 / 3
"""Work with all activations recomputed: one more forward in addition to a forward and a backward of twice its work (Chen et al.,
Training Deep Nets with Sublinear Memory Cost, 2016)."""


def _work(value: Value, rates: Mapping[str, float]) -> WorkFactors:
    if value == "none":
        return WorkFactors()
    again = 1 + (AGAIN - 1) / int(_OPTIONS[str(value)].get("every_n_layers", 1))
    return WorkFactors(again, again)


SETTING = Setting(
    name="checkpointing",
    values=VALUES,
    summary="Recomputes activations in the backward pass: much less memory for about one more forward.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(_unavailable),
    costs=Costs(_needs_at_least_as_much, work=_work),
)
