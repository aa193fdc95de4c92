"""LoRA: small matrices added to the weights are trained instead of the weights (arXiv 2106.09685)."""

from autotune.core import Environment, Value
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of, needs_package
from autotune.space.settings.setting import Context, Costs, Effect, Learning, Observed, Setting

NONE = "none"
NAMES = (NONE, "8", "16", "32", "64", "128")
"""No adapter, or its rank: how many rows and columns its matrices have."""

ALPHA = 2
"""`lora_alpha` in ranks: how strongly the adapter counts, which changes no speed (LoRA's own GPT-2 and
GPT-3 runs scale by 8 to 1/2; twice the rank is what PEFT's examples take)."""


def _apply(value: Value, environment: Environment) -> Effect:
    rank = 0 if value == NONE else int(value)
    return Effect(adapter={"r": rank, "lora_alpha": ALPHA * rank} if rank else {"r": 0})


def _read_back(observed: Observed) -> str:
    """The rank, if nothing but the adapter (and a new head) is trained."""
    model = observed.trainer.model
    configs = getattr(model, "peft_config", None)
    if not configs:
        return NONE
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if any("lora_" not in name and "modules_to_save" not in name for name in learning):
        return "with other weights"
    return str(next(iter(configs.values())).r)


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    if context.workload.task == "image-classification":
        return Exclusion(ExclusionKind.MODEL, detail="its new head would not be trained: PEFT has no such task")
    return None


def _needs_at_least_as_much(value: Value, other: Value) -> bool:
    """Comparison of ranks. All weights against an adapter is open: a small model's adapter keeps more activations."""
    return value == other if NONE in (value, other) else int(value) >= int(other)


SETTING = Setting(
    name="lora",
    values=NAMES,
    learning=Learning(),
    summary="An adapter of this rank is trained instead of all weights: hardly any gradients and optimizer states.",
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(needs_package("peft"), _unavailable),
    costs=Costs(_needs_at_least_as_much, spares_gradients=lambda value: value != NONE),
)
