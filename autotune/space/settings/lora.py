"""LoRA: small matrices beside the weights are trained instead of the weights (arXiv 2106.09685)."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import Value
from autotune.core.environment import Environment
from autotune.core.workload import Workload
from autotune.space.settings.setting import Effect, Observed, Setting, one_of

NONE = "none"
NAMES = (NONE, "8", "16", "32", "64", "128")
"""No adapter, or its rank: how many rows and columns its matrices have."""

ALPHA = 2
"""`lora_alpha` is so many times the rank: how strongly the adapter counts, which changes no speed (LoRA's own GPT-2 and
GPT-3 runs scale by 8 to 1/2; twice the rank is what PEFT's examples take)."""


def _from_user(base: Mapping[str, Any], environment: Environment, workload: Workload) -> str:
    """No field of TrainingArguments says: without a word all weights are trained."""
    return NONE


def _apply(value: Value, environment: Environment) -> Effect:
    rank = 0 if value == NONE else int(value)
    return Effect(adapter={"r": rank, "lora_alpha": ALPHA * rank} if rank else {"r": 0})


def _read_back(observed: Observed) -> str:
    """The rank, where nothing but the adapter (and a new head) is trained."""
    model = observed.trainer.model
    known = getattr(model, "peft_config", None)
    if not known:
        return NONE
    adapter = next(iter(known.values()))
    learning = [name for name, one in model.named_parameters() if one.requires_grad]
    if any("lora_" not in name and "modules_to_save" not in name for name in learning):
        return "with other weights"
    return str(adapter.r)


def _unavailable(value: Value, environment: Environment, workload: Workload) -> str | None:
    if value == NONE:
        return None
    if "peft" not in environment.versions:
        return "needs `pip install peft`"
    if workload.user_objects:
        return "the model comes built from your model_init: put the adapter on there"
    if workload.task == "image-classification":
        return "its new head would not be trained: PEFT knows it by no task"
    return None


def _needs_at_least_as_much(one: Value, other: Value) -> bool:
    """A larger rank is; all weights against an adapter is not said: a small model's adapter keeps more activations."""
    if NONE in (one, other):
        return one == other
    return int(one) >= int(other)


SETTING = Setting(
    name="lora",
    values=NAMES,
    changes=frozenset({"speed", "memory", "numerics"}),
    summary="An adapter of this rank is trained instead of all weights: hardly any gradients and optimizer states.",
    read=one_of(*NAMES),
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=_unavailable,
    needs_at_least_as_much=_needs_at_least_as_much,
    spares_gradients=lambda value: value != NONE,
)
