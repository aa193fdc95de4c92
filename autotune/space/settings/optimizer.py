"""Optimizer: what turns gradients into steps, and how many bytes of state it keeps for each parameter."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import not_combined, tried_on_device
from autotune.space.settings.setting import (
    ACCUMULATION,
    Context,
    Costs,
    Effect,
    Learning,
    Observed,
    Setting,
    WorkFactors,
)

_FIRST = "adamw_torch"
ORDINARY = (_FIRST, "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd")
"""Optimizers that are tried on every device: that takes no time."""

SAME_ADAMW = (
    *(_FIRST, "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"),
    *("adamw_torch_8bit", "adamw_torch_4bit", "adamw_torch_xla", "adamw_torch_npu_fused"),
)
"""Optimizers that compute AdamW, in the number of bits in their names; all others learn differently."""

NAMES = (
    *dict.fromkeys([*ORDINARY, *SAME_ADAMW]),
    *("rmsprop", "adagrad", "adamw_anyprecision"),
    *("lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit"),
    *("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
    *("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw"),
    *("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "apollo_adamw_layerwise"),
    *("lomo", "adalomo", "grokadamw", "stable_adamw"),
    *("schedule_free_adamw", "schedule_free_radam", "schedule_free_sgd"),
)
"""The values of transformers' `OptimizerNames`; `read` takes a later one's too."""

OWN, ANY = "own", "any"
"""The optimizer that the user made, whatever the arguments' `optim` says; of any class if the Trainer's class makes it."""

# State and temporary tensors for each parameter, least first: SGD without momentum none; the fused AdamW does without the
# temporaries of the plain one. Adafactor and 8-bit Adam keep less, but what they make on the way (a whole update of the
# largest matrix; their library's own pages on a CPU) can be more: they have no place in this order.
_ORDER = {"sgd": 0, "adamw_torch_fused": 2, "adamw_torch": 3}

_ADAMW = (
    *("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"),
    *("paged_adamw", "paged_adamw_32bit"),
)
"""AdamW with 32-bit states, of any library."""
_STEPS_IN_BACKWARD = ("lomo", "adalomo")
"""Optimizers that step while the backward pass runs and keep no gradients: nothing to accumulate (the LOMO paper, 2023)."""

_LOW_RANK = ("galore_", "apollo_")
"""They project the gradients of linear layers, which `optim_target_modules` must name."""

_SHOWN = {
    ("torch", "sgd"): "sgd",
    ("torch", "adagrad"): "adagrad",
    ("torch", "rmsprop"): "rmsprop",
    ("transformers", "adafactor"): "adafactor",
    ("torchao", "adamw8bit"): "adamw_torch_8bit",
    ("torchao", "adamw4bit"): "adamw_torch_4bit",
}
"""Package and class -> the name that the Trainer makes it from."""


def user_optimizer(base: Mapping[str, Any]) -> str:
    """The optimizer that the user's own arguments name, or the Trainer's default."""
    return str(getattr(base.get("optim"), "value", base.get("optim")) or "adamw_torch_fused")


def _read(text: Any) -> str:
    word = str(text).strip().lower().replace("-", "_")
    if word not in (OWN, *NAMES) and word not in _installed_names():
        raise ValueError(f"{text!r} is not an optimizer of transformers, such as {', '.join(NAMES[:6])}")
    return word


def _installed_names() -> tuple[str, ...]:
    """The values of the installed transformers' `OptimizerNames`, from its source: importing it takes seconds."""
    package = find_spec("transformers")
    source = Path(next(iter(package.submodule_search_locations or ()), "")) / "training_args.py" if package else Path()
    if not source.is_file():
        return ()
    body = source.read_text(encoding="utf-8").partition("class OptimizerNames")[2].partition("\n\n\n")[0]
    return tuple(re.findall(r'^\s+[A-Z0-9_]+ = "(\w+)"', body, re.MULTILINE))


def _apply(value: Value, environment: Environment) -> Effect:
    if value == OWN:
        return Effect()
    low_rank = str(value).startswith(_LOW_RANK)
    return Effect({"optim": value}, defaults={"optim_target_modules": "all-linear"} if low_rank else {})


def _read_back(observed: Observed) -> str:
    optimizer = observed.trainer.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
    kind, package = type(optimizer).__name__, type(optimizer).__module__.partition(".")[0]
    if getattr(observed.trainer, "own_optimizer", "") in (kind, ANY):
        return OWN
    optim = observed.trainer.args.optim
    named = str(getattr(optim, "value", optim))
    if package == "bitsandbytes":
        return _of_bitsandbytes(optimizer, kind.lower(), named)
    if (package, kind) == ("torch", "AdamW"):
        return "adamw_torch_fused" if optimizer.defaults.get("fused") else "adamw_torch"
    # A class of its own: the Trainer made it from this name.
    return _SHOWN.get((package, kind.lower()), named if named not in _SHOWN.values() else kind.lower())


def _of_bitsandbytes(optimizer: Any, kind: str, named: str) -> str:
    """Its names have aliases (adamw_8bit): what shows is its kind, whether it is paged and how many bits it keeps."""
    bits = getattr(getattr(optimizer, "args", None), "optim_bits", "?")
    paged = "paged_" if getattr(optimizer, "is_paged", False) else ""
    requested = (8 if "8bit" in named else 32, named.startswith("paged_"), kind in named, "torch" in named)
    return named if requested == (bits, bool(paged), True, False) else f"{paged}{kind}_bnb_{bits}bit"


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if context.workload.own_optimizer:
        reason = Exclusion(ExclusionKind.MODEL, detail="your Trainer has an optimizer of its own")
        return None if value == OWN else reason
    if value == OWN:
        return Exclusion(ExclusionKind.MODEL, detail="your Trainer has none of its own")
    if context.environment.is_cpu and str(value).startswith("paged_"):
        text = "it pages states between a GPU's memory and the host's: on a CPU it is the one without pages"
        return Exclusion(ExclusionKind.DEVICE, detail=text)
    return tried_on_device("optimizers")(value, context)


SETTING = Setting(
    name="optimizer",
    values=NAMES,
    summary="Fused and paged ones compute the same AdamW, 8-bit ones nearly, with less state; others learn differently.",
    read=_read,
    from_user=lambda context: OWN if context.workload.own_optimizer else user_optimizer(context.arguments),
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    forbidden={
        ACCUMULATION: not_combined(
            "it steps while the backward pass runs, so that no gradients can accumulate",
            lambda value, steps: int(steps) > 1 and (value in _STEPS_IN_BACKWARD or str(value).endswith("_layerwise")),
        )
    },
    costs=Costs(
        lambda value, other: value == other or _ORDER.get(str(value), -1) > _ORDER.get(str(other), 99),
        work=lambda value, rates: WorkFactors(
            update=rates[_FIRST] / rates[str(value)] if {_FIRST, value} <= rates.keys() else 1.0
        ),
    ),
    learning=Learning(
        lambda value: "adamw" if value in _ADAMW else value,
        lambda value: (
            ("" if value in _ADAMW else "the same rule with states of 8 or 4 bits")
            if value in SAME_ADAMW
            else "another rule of updates than AdamW's: tune the learning rate anew"
        ),
    ),
)
