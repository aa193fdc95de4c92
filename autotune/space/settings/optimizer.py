"""The optimizer: what turns gradients into steps, and how many bytes of state it keeps for each parameter."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import ACCUMULATION, Effect, Observed, Setting, Work, from_probe_of_the_device

_FIRST = "adamw_torch"
ORDINARY = (_FIRST, "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd")
"""Those that every device is asked about: they take no time to try."""

SAME_ADAMW = (
    *(_FIRST, "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"),
    *("adamw_torch_8bit", "adamw_torch_4bit", "adamw_torch_xla", "adamw_torch_npu_fused"),
)
"""Those that compute AdamW, in as many bits as their names say; every other one learns in its own way."""

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
"""The optimizer that the caller made, whatever the arguments' `optim` says; of any class where the Trainer's class makes it."""

# State and temporary tensors for each parameter, least first: SGD without momentum none; the fused AdamW does without the
# temporaries of the plain one. Adafactor and 8-bit Adam keep less, but what they make on the way (a whole update of the
# largest matrix; their library's own pages on a CPU) can be more: they have no place in this order.
_ORDER = {"sgd": 0, "adamw_torch_fused": 2, "adamw_torch": 3}

_ADAMW = (
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "paged_adamw",
    "paged_adamw_32bit",
)
"""AdamW with 32-bit states, by whomever."""
_STEPS_IN_BACKWARD = ("lomo", "adalomo")
"""They step while the backward pass runs and keep no gradients: nothing is there to accumulate (the LOMO paper, 2023)."""

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


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return OWN if workload.own_optimizer else user_optimizer(base)


def _read(text: Any) -> str:
    word = str(text).strip().lower().replace("-", "_")
    if word not in (OWN, *NAMES) and word not in _known_to_transformers():
        raise ValueError(f"{text!r} is no optimizer of transformers, as {', '.join(NAMES[:6])}")
    return word


def _known_to_transformers() -> tuple[str, ...]:
    """The values of the `OptimizerNames` that is installed, from its source: importing it takes seconds."""
    found = find_spec("transformers")
    source = Path(next(iter(found.submodule_search_locations or ()), "")) / "training_args.py" if found else Path()
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
    named = observed.trainer.args.optim
    named = str(getattr(named, "value", named))
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
    asked = (8 if "8bit" in named else 32, named.startswith("paged_"), kind in named, "torch" in named)
    return named if asked == (bits, bool(paged), True, False) else f"{paged}{kind}_bnb_{bits}bit"


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if workload.own_optimizer:
        return None if value == OWN else "your Trainer has an optimizer of its own"
    if value == OWN:
        return "your Trainer has none of its own"
    if environment.is_cpu and str(value).startswith("paged_"):
        return "it pages states between a GPU's memory and the host's: on a CPU it is the one without pages"
    return from_probe_of_the_device("optimizers")(value, environment, workload)


def _beside_accumulation(value: Value, steps: Value) -> str | None:
    layerwise = str(value).endswith("_layerwise")
    if int(steps) > 1 and (layerwise or value in _STEPS_IN_BACKWARD):
        return "it steps while the backward pass runs, so that no gradients can accumulate"
    return None


def _needs_at_least_as_much(one: Value, other: Value) -> bool:
    if one == other:
        return True
    return _ORDER.get(str(one), -1) > _ORDER.get(str(other), 99)


SETTING = Setting(
    name="optimizer",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="Fused and paged ones compute the same AdamW, 8-bit ones nearly, with less state; others learn differently.",
    read=_read,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    needs_at_least_as_much=_needs_at_least_as_much,
    learns=lambda value: "adamw" if value in _ADAMW else value,
    work=lambda value, rates: Work(
        update=rates[_FIRST] / rates[str(value)] if {_FIRST, value} <= rates.keys() else 1.0
    ),
    forbidden={ACCUMULATION: _beside_accumulation},
    differs=lambda value: (
        ("" if value in _ADAMW else "the same rule with states of 8 or 4 bits")
        if value in SAME_ADAMW
        else "another rule of updates than AdamW's: tune the learning rate anew"
    ),
)
