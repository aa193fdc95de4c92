"""Activation checkpointing: forget activations in the forward, compute them again in the backward."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, Work, one_of

_OPTIONS: dict[str, dict[str, Any]] = {
    "full": {"use_reentrant": False},
    "every_2nd": {"use_reentrant": False, "every_n_layers": 2},
    "every_3rd": {"use_reentrant": False, "every_n_layers": 3},
    "offload": {"use_reentrant": False, "offload": True},
    "full_reentrant": {"use_reentrant": True},
}
"""What transformers hands to `activation_checkpointing_enable`: torch advises against the reentrant way, but it keeps less
to compare the recomputed tensors by."""

VALUES = ("none", *_OPTIONS)

OPTIONS = ("every_n_layers", "offload")
"""Those that not every transformers knows (`Environment.checkpointing_options`)."""

_BY_NEED = {"none": 3, "every_3rd": 2, "every_2nd": 1, "full": 0}
"""The more layers forget, the less is held."""


INPUT_GRADIENT_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")
"""Names of the hooks on the input embeddings by which transformers and PEFT let gradients through a checkpointed layer
whose weights are frozen (`PreTrainedModel.enable_input_require_grads`, `peft.prepare_model_for_kbit_training`)."""


def field_name(environment: Environment) -> str:
    """`activation_checkpointing` where this transformers knows it, else its older name."""
    fields = environment.training_argument_fields
    return "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"


def options_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of checkpointing that training arguments hold under either name; raises ValueError for text."""
    known = arguments.get("activation_checkpointing_kwargs") or arguments.get("gradient_checkpointing_kwargs") or {}
    if not isinstance(known, Mapping):
        raise ValueError(f"{known!r} is no table of options")
    return dict(known)


def switch_off(model: Any) -> None:
    """Make a built model keep its activations, however and below whatever wrapper they were to be recomputed.

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


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    if not (base.get("activation_checkpointing") or base.get("gradient_checkpointing")):
        return one_of(*VALUES)(workload.checkpointing or "none")
    known = {"use_reentrant", *OPTIONS}  # torch's other options change no more than checks
    told = _OPTIONS["full"] | {name: one for name, one in options_of(base).items() if name in known}
    if not (name := _named(told)):
        raise ValueError(f"the options {told} are none of {', '.join(_OPTIONS)}")
    return name


def _named(options: Mapping[str, Any]) -> str:
    """The value of these options; empty for none of them."""
    told = {"every_n_layers": 1, "offload": False}
    asked = {**told, **options}
    return next((name for name, one in _OPTIONS.items() if {**told, **one} == asked), "")


def _apply(value: Value, environment: Environment) -> Effect:
    name = field_name(environment)
    if value == "none":
        return Effect({name: False}, contradicts=(f"{name}_kwargs",))
    return Effect({name: True, f"{name}_kwargs": dict(_OPTIONS[str(value)])})


def enabled_on(model: Any, every_n_layers: Sequence[int] = (1, 2, 3)) -> str:
    """The value that is on for this model, whoever switched it on: by the layers that forget, and the function that they call
    for it. Where it is none of the values, a description. every_n_layers: what to tell the layers that forget by, in turn."""
    modules = list(model.modules())
    flagged = [one for one in modules if getattr(one, "gradient_checkpointing", False)]
    if not flagged:
        return "none"
    layers = [
        one for one in modules if any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(one).__mro__)
    ]
    on = [bool(one.gradient_checkpointing) for one in layers]
    every = next((n for n in every_n_layers if on == [at % n == 0 for at in range(len(layers))]), None)
    if every is None:
        return f"{sum(on)} of {len(layers)} layers"
    function = getattr(flagged[-1], "_gradient_checkpointing_func", None)
    shown = {
        "use_reentrant": bool(getattr(function, "keywords", {}).get("use_reentrant", False)),
        "every_n_layers": every if layers else 1,
        "offload": getattr(getattr(function, "func", None), "__name__", "checkpoint") != "checkpoint",
    }
    return _named(shown) or ", ".join(f"{name} {value}" for name, value in shown.items())


def _read_back(observed: Observed) -> str:
    return enabled_on(observed.trainer.model, (_every_n(observed.trainer.args),))


def _every_n(arguments: Any) -> int:
    return int(options_of(vars(arguments)).get("every_n_layers", 1))


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "none":
        return None
    if workload.supports_checkpointing is False:
        return f"{workload.architecture or 'this model'} does not support activation checkpointing"
    for option in OPTIONS:
        if option in _OPTIONS[str(value)] and option not in environment.checkpointing_options:
            return f"this transformers' checkpointing has no option {option}: a later one has"
    if value == "offload" and environment.is_cpu:
        return "on a CPU the activations lie in the host's memory already"
    return None


def _needs_at_least_as_much(one: Value, other: Value) -> bool:
    if one == other or one == "none":
        return True
    known = {one, other} <= _BY_NEED.keys()
    return known and _BY_NEED[str(one)] > _BY_NEED[str(other)]


AGAIN = 4 / 3
"""Work with all activations recomputed: one more forward beside a forward and a backward of twice its work (Chen et al.,
Training Deep Nets with Sublinear Memory Cost, 2016)."""


def _work(value: Value, rates: Mapping[str, float]) -> Work:
    if value == "none":
        return Work()
    again = 1 + (AGAIN - 1) / int(_OPTIONS[str(value)].get("every_n_layers", 1))
    return Work(again, again)


SETTING = Setting(
    name="checkpointing",
    values=VALUES,
    changes=frozenset({"speed", "memory"}),
    summary="Recomputes activations in the backward pass: much less memory for about one more forward.",
    read=one_of(*VALUES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    needs_at_least_as_much=_needs_at_least_as_much,
    work=_work,
)
