"""LoRA's targets: which layers get an adapter."""

from autotune.space.settings import lora
from autotune.space.settings.exclusion import ExclusionKind, excluded
from autotune.space.settings.setting import Costs, Effect, Learning, Observed, Setting

ALL_LINEAR, ATTENTION = NAMES = ("all_linear", "attention")

PROJECTIONS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "qkv_proj", "query_proj", "key_proj", "value_proj"),
    *("Wqkv", "query_key_value", "query", "key", "value", "c_attn", "q", "k", "v", "o"),
    *("q_lin", "k_lin", "v_lin", "out_lin"),
)
"""The names that transformers' models give the projections of their attention."""

FIELDS = {ALL_LINEAR: "all-linear", ATTENTION: rf".*[._]({'|'.join(PROJECTIONS)})"}
"""`target_modules` of PEFT: its word for every linear layer but the output's; an expression that a layer's whole name
matches."""


def _read_back(observed: Observed) -> str | None:
    """Value that the layers with an adapter show, or None."""
    model = observed.trainer.model
    if not getattr(model, "peft_config", None):
        return None
    adapted = {
        name.partition(".lora_")[0].rpartition(".")[2] for name, _ in model.named_parameters() if ".lora_" in name
    }
    return ATTENTION if adapted <= set(PROJECTIONS) else ALL_LINEAR


SETTING = Setting(
    name="lora_targets",
    values=NAMES,
    learning=Learning(),
    summary="An adapter on attention alone is smaller than one on every linear layer, and learns less.",
    apply=lambda value, environment: Effect(adapter={"target_modules": FIELDS[str(value)]}),
    read_back=_read_back,
    unavailable=lambda value, context: excluded(ExclusionKind.MODEL, context.workload.adapter_targets.get(str(value))),
    costs=Costs(lambda value, other: value in (other, ALL_LINEAR)),
    active_if=(lora.SETTING.name, lambda value: value != lora.NONE),
)
