"""LoRA's targets: which layers get an adapter."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings import lora
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

ALL_LINEAR, ATTENTION = NAMES = ("all_linear", "attention")

PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "query_proj", "key_proj", "value_proj"),
    *(
        "Wqkv",
        "query_key_value",
        "query",
        "key",
        "value",
        "c_attn",
        "q",
        "k",
        "v",
        "o",
        "q_lin",
        "k_lin",
        "v_lin",
        "out_lin",
    ),
)
"""The names that transformers' models give the projections of their attention."""

FIELDS = {ALL_LINEAR: "all-linear", ATTENTION: rf".*[._]({'|'.join(PROJECTIONS)})"}
"""`target_modules` of PEFT: its word for every linear layer but the output's; an expression that a layer's whole name
matches."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    return ALL_LINEAR


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(adapter={"target_modules": FIELDS[str(value)]})


def _read_back(observed: Observed) -> str | None:
    """By what got one; None where nothing did."""
    model = observed.trainer.model
    if not getattr(model, "peft_config", None):
        return None
    adapted = {
        name.partition(".lora_")[0].rpartition(".")[2] for name, _ in model.named_parameters() if ".lora_" in name
    }
    return ATTENTION if adapted <= set(PROJECTIONS) else ALL_LINEAR


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    return workload.adapter_targets.get(str(value))


SETTING = Setting(
    name="lora_targets",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="An adapter on attention alone is smaller than one on every linear layer, and learns less.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    needs_at_least_as_much=lambda one, other: one in (other, ALL_LINEAR),
    active_if=(lora.SETTING.name, lambda value: value != lora.NONE),
)
