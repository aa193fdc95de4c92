"""Precision: the number format of matrix products, and with `bf16_weights` and `bf16_frozen` of the weights too."""

import os
from typing import Any

from autotune.core import Environment, Value
from autotune.space.settings import lora
from autotune.space.settings.compile import is_on as compiles
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of, has_tf32, not_combined, tried_on_device
from autotune.space.settings.setting import Context, Costs, Effect, Learning, Observed, Setting, WorkFactors
from autotune.space.settings.zero import engine_config

# None leaves TF32 as the user's arguments have it: under autocast hardly any float32 product is left.
_FIELDS: dict[str, dict[str, bool | None]] = {
    "fp32": {"fp16": False, "bf16": False, "tf32": False},
    "tf32": {"fp16": False, "bf16": False, "tf32": True},
    "fp16": {"fp16": True, "bf16": False, "tf32": None},
    "bf16": {"fp16": False, "bf16": True, "tf32": None},
    "bf16_weights": {"fp16": False, "bf16": False, "tf32": None},
    "bf16_frozen": {"fp16": False, "bf16": True, "tf32": None},
}
VALUES = tuple(_FIELDS)

WEIGHTS = "bf16_weights"
"""Weights, gradients and the states of torch's optimizers in bfloat16, and no autocast: half the bytes. With 8 bits of
precision an update below 1/256 of a weight is lost (the guides' "pure bf16")."""

FROZEN = "bf16_frozen"
"""Frozen weights in bfloat16 below an adapter, and autocast to bfloat16: PEFT keeps the adapter in float32 (`get_peft_model`,
`autocast_adapter_dtype`), and without autocast its products would run in float32 too."""

ALIKE = {WEIGHTS: "bf16", FROZEN: "bf16"}
"""Value -> the one whose matrix products have the same factors."""

LAUNCHED = "ACCELERATE_MIXED_PRECISION"
"""The variable by which `accelerate launch` chooses the precision of arguments that choose none."""

_BF16, _FLOAT64 = "bfloat16", "float64"


def leave_launcher() -> None:
    """Let training arguments alone choose the precision of this process."""
    if os.environ.get(LAUNCHED) in ("bf16", "fp16"):
        del os.environ[LAUNCHED]


_OF_ACCELERATE = ("forward", "_original_forward", "_is_accelerate_prepared")
"""Attributes of a model that `Accelerator.prepare_model` sets (accelerate 1.15)."""


def unwrap(model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Let the next Trainer that trains this model choose its precision; returns what `wrap_again` takes.

    At a model's first training accelerate puts autocast around its forward, or does not, and every later Trainer finds the
    model prepared and leaves it so, whatever its own arguments say.
    """
    wrapped = []
    for module in model.modules():
        attributes = vars(module)
        if not attributes.get("_is_accelerate_prepared"):
            continue
        wrapped.append((module, {name: attributes[name] for name in _OF_ACCELERATE if name in attributes}))
        del attributes["_is_accelerate_prepared"]
        if forward := attributes.pop("_original_forward", None):
            attributes["forward"] = forward
            if getattr(forward, "__func__", None) is type(module).forward:
                del attributes["forward"]
    return wrapped


def wrap_again(wrapped: list[tuple[Any, dict[str, Any]]]) -> None:
    """Undo `unwrap`."""
    for module, attributes in wrapped:
        vars(module).update(attributes)


def _from_user(context: Context) -> str:
    value = next((name for name in ("fp16", "bf16", "tf32") if context.arguments.get(name)), "fp32")
    if value == "fp32" and compiles(context) and has_tf32(context.environment):  # see `compile._forbidden_precision`
        value = "tf32"
    return WEIGHTS if value in ("fp32", "tf32") and context.workload.weights_dtype == _BF16 else value


def _apply(value: Value, environment: Environment) -> Effect:
    return Effect(_FIELDS[str(value)], model_arguments={"dtype": _BF16} if value in (WEIGHTS, FROZEN) else {})


_OF_ENGINE = {"float16": "fp16", _BF16: "bf16"}
"""Output dtype of a linear layer under DeepSpeed -> the value and part of its config: its engine casts the model to 16 bits,
keeps float32 weights as well, and needs no autocast."""


def _read_back(observed: Observed) -> str | None:
    """Value that the first step shows: output of a linear layer, autocast, and what is frozen."""
    if observed.linear_dtype in ("", _FLOAT64):  # autocast leaves float64 as it is
        return observed.linear_dtype or None
    of_engine = _OF_ENGINE.get(observed.linear_dtype, "")
    if ((engine_config(observed.trainer) or {}).get(of_engine) or {}).get("enabled") is True:
        return of_engine
    if observed.autocast and observed.linear_dtype == "float16":
        return "fp16"
    if observed.autocast and observed.linear_dtype == _BF16:
        return FROZEN if _BF16 in observed.frozen_dtypes else "bf16"
    if observed.linear_dtype == _BF16 and not observed.autocast:
        return WEIGHTS
    if observed.linear_dtype != "float32" or observed.autocast:
        return f"{observed.linear_dtype}, autocast {'on' if observed.autocast else 'off'}"
    return "tf32" if observed.tf32 else "fp32"


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    workload = context.workload
    if workload.weights_dtype == _FLOAT64 and value != _from_user(context):
        return Exclusion(
            ExclusionKind.MODEL, detail="the weights of your model are float64, which no precision changes"
        )
    if workload.weights_dtype == _BF16 and value not in (WEIGHTS, "bf16"):
        return Exclusion(ExclusionKind.MODEL, detail="the weights of your model are bfloat16")
    return None


SETTING = Setting(
    name="precision",
    values=VALUES,
    summary="Number format of matrix products: 16 bits move half the bytes and use the fast units, with fewer digits.",
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(_unavailable, tried_on_device("precisions")),
    forbidden={
        lora.SETTING.name: not_combined(
            f"only an adapter's weights stay in float32: {WEIGHTS} trains all",
            lambda value, rank: (value, rank) == (FROZEN, lora.NONE),
        )
    },
    costs=Costs(
        work=lambda value, rates: WorkFactors(
            rates["fp32"] / rates[str(value)] if {"fp32", value} <= rates.keys() else 1.0
        )
    ),
    learning=Learning(
        lambda value: "bf16" if value == FROZEN else value,
        lambda value: "weights of 8 bits' precision lose small updates" if value == WEIGHTS else "",
    ),
)
