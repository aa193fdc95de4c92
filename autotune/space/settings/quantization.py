"""Quantization: frozen weights in four bits under an adapter (QLoRA, arXiv 2305.14314)."""

from autotune.core import Environment, Value
from autotune.space.settings import lora
from autotune.space.settings.rules import first_of, needs_package, not_combined, tried_on_device
from autotune.space.settings.setting import Context, CostChange, Costs, Effect, Learning, Observed, Setting

NONE = "none"
NAMES = (NONE, "nf4", "fp4")
FIELD = "quantization_config"

BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Bits of a packed weight: its own, its share of the scale that 64 weights have in 8 bits, and of the one that 256 scales have
(double quantization; QLoRA, section 3)."""


def _apply(value: Value, environment: Environment) -> Effect:
    if value == NONE:
        return Effect(model_arguments={FIELD: None})
    computes = "bfloat16" if (environment.compute_capability or (0, 0)) >= (8, 0) else "float16"
    config = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": value,
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "float32" if environment.is_cpu else computes,
    }
    return Effect(model_arguments={FIELD: config})


def _read_back(observed: Observed) -> str:
    """Value that the weights themselves show."""
    for weight in observed.trainer.model.parameters():
        if type(weight).__name__ == "Params4bit":
            packed = weight.dtype.itemsize == 1 and getattr(weight, "quant_state", None)
            return str(weight.quant_type) if packed else "not packed"
    return NONE


def _change(value: Value, context: Context) -> CostChange:
    """Saving from packing the linear layers, against weights of the model's number of bytes."""
    workload = context.workload
    if value == NONE or not workload.parameters:
        return CostChange()
    bytes_each = workload.parameter_bytes / workload.parameters
    return CostChange(peak_bytes=-workload.linear_parameters * (bytes_each - BITS / 8))


SETTING = Setting(
    name="quantization",
    values=NAMES,
    learning=Learning(),
    summary="Frozen weights in four bits take an eighth of the memory and time to unpack.",
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(
        needs_package("bitsandbytes"),
        tried_on_device("quantizations"),
        lambda value, context: lora.SETTING.unavailable("8", context),
    ),
    active_if=(lora.SETTING.name, lambda value: value != lora.NONE),
    # Where four bits are the only value of a space, they would come with a training of all weights too.
    forbidden={
        lora.SETTING.name: not_combined(
            "frozen weights learn only by an adapter", lambda value, rank: value != NONE and rank == lora.NONE
        )
    },
    costs=Costs(
        lambda value, other: value in (other, NONE),
        traceable=lambda value: value == NONE,
        spares_gradients=lambda value: value != NONE,
        change=_change,
    ),
)
