"""Activation checkpointing: forget activations in the forward, compute them again in the backward."""

from collections.abc import Mapping
from typing import Any

from autotune.configuration import Value
from autotune.environment import Environment
from autotune.levers.lever import Lever, Observed, Settings, Work, one_of
from autotune.workload import Workload


def field_name(environment: Environment) -> str:
    """`activation_checkpointing` where this transformers knows it, else its older name."""
    fields = environment.training_argument_fields
    return "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"


def _own(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return "full" if base.get("activation_checkpointing") or base.get("gradient_checkpointing") else "none"


def _apply(value: Value, environment: Environment) -> Settings:
    return Settings({field_name(environment): value == "full"})


def _read_back(observed: Observed) -> str:
    on = any(getattr(module, "gradient_checkpointing", False) for module in observed.trainer.model.modules())
    return "full" if on else "none"


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == "full" and workload.supports_checkpointing is False:
        return f"{workload.architecture or 'this model'} does not support activation checkpointing"
    return None


AGAIN = 4 / 3
"""Work with all activations recomputed: one more forward beside a forward and a backward of twice its work (Chen et al.,
Training Deep Nets with Sublinear Memory Cost, 2016)."""

LEVER = Lever(
    name="checkpointing",
    values=("none", "full"),
    changes=frozenset({"speed", "memory"}),
    summary="Recomputes activations in the backward pass: much less memory for about one more forward.",
    read=one_of("none", "full"),
    own=_own,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    hungrier=lambda one, other: one == other or one == "none",
    work=lambda value, rates: Work(AGAIN, AGAIN) if value == "full" else Work(),
)
