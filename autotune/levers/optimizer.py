"""The optimizer: what turns gradients into steps, and how many bytes of state it keeps for each parameter."""

from collections.abc import Mapping
from typing import Any

from autotune.configuration import Value
from autotune.environment import Environment
from autotune.levers.lever import Lever, Observed, Settings, Work, from_probe_of_the_device, one_of
from autotune.workload import Workload

_FIRST = "adamw_torch"
NAMES = (_FIRST, "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd")

# State and temporary tensors for each parameter, least first: SGD without momentum none; the fused AdamW does without the
# temporaries of the plain one. Adafactor and 8-bit Adam keep less, but what they make on the way (a whole update of the
# largest matrix; their library's own pages on a CPU) can be more: they have no place in this order.
_ORDER = {"sgd": 0, "adamw_torch_fused": 2, "adamw_torch": 3}

_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused")
"""AdamW with 32-bit states, by whomever."""


def own_name(base: Mapping[str, Any]) -> str:
    """The optimizer that the user's own arguments name, or the Trainer's default."""
    return str(getattr(base.get("optim"), "value", base.get("optim")) or "adamw_torch_fused")


def _own(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return own_name(base)


def _apply(value: Value, environment: Environment) -> Settings:
    return Settings({"optim": value})


def _read_back(observed: Observed) -> str:
    optimizer = observed.trainer.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
    kind, module = type(optimizer).__name__, type(optimizer).__module__
    named = observed.trainer.args.optim
    named = str(getattr(named, "value", named))
    if module.startswith("bitsandbytes"):
        bits = getattr(getattr(optimizer, "args", None), "optim_bits", "?")
        paged = "paged_" if getattr(optimizer, "is_paged", False) else ""
        # Its names have aliases (adamw_8bit); what shows is whether it is paged and how many bits it keeps.
        agrees = f"_{bits}bit" in named and named.startswith("paged_") == bool(paged)
        return named if agrees else f"{paged}{kind.lower()}_bnb_{bits}bit"
    if kind == "AdamW":
        return "adamw_torch_fused" if optimizer.defaults.get("fused") else "adamw_torch"
    if kind.lower() in NAMES:
        return kind.lower()
    return named  # a class of its own: the Trainer made it from this name


def _hungrier(one: Value, other: Value) -> bool:
    if one == other:
        return True
    return _ORDER.get(str(one), -1) > _ORDER.get(str(other), 99)


LEVER = Lever(
    name="optimizer",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="Fused and 8-bit variants compute the same AdamW faster or with less state; others learn differently.",
    read=one_of(*NAMES),
    own=_own,
    apply=_apply,
    read_back=_read_back,
    unavailable=from_probe_of_the_device("optimizers"),
    hungrier=_hungrier,
    learns=lambda value: "adamw" if value in _ADAMW else value,
    work=lambda value, rates: Work(
        update=rates[_FIRST] / rates[str(value)] if {_FIRST, value} <= rates.keys() else 1.0
    ),
)
