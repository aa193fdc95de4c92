"""DeepSpeed's ZeRO: optimizer states, gradients and weights divided between ranks, or kept in the host's memory."""

from collections.abc import Mapping
from typing import Any

from autotune.core.configuration import RANKS, Value
from autotune.core.environment import Environment
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.settings.rules import first_of, needs_gpu, needs_package, not_combined
from autotune.space.settings.setting import Context, Costs, Effect, Observed, Setting, one_of

NONE, OWN = "none", "own"
STAGES = ("0", "1", "2", "3")
OFFLOADING = ("2_offload_optimizer", "3_offload_optimizer", "3_offload_all")
NAMES = (NONE, *STAGES, *OFFLOADING)
NVME = "3_offload_nvme:"
"""Followed by a folder on a fast disk: `3_offload_nvme:/local/nvme`."""

FIELD = "deepspeed"
BYTES_PER_PARAMETER = 16
"""Weights 4, gradients 4 and AdamW's states 8 in float32 (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1)."""

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""Variables that a launcher would set for a single process; the port is torch's default."""


def _forbidden_optimizer(value: Value, optimizer: Value) -> Exclusion | None:
    """DeepSpeed's own AdamW on the host updates what is offloaded."""
    if "offload" not in str(value) or optimizer in ("adamw_torch", "adamw_torch_fused"):
        return None
    text = f"DeepSpeed updates what it offloads by its own AdamW, not by {optimizer}"
    return Exclusion(ExclusionKind.COMBINATION, detail=text)


def _read(text: Any) -> str:
    """One of the names, or NVMe with a folder; raises ValueError."""
    word = str(text).strip()
    return word if word.startswith(f"{NVME}/") else one_of(*NAMES, OWN, f"{NVME}/FOLDER")(word)


def zero_config(value: str) -> dict[str, Any]:
    """DeepSpeed's config of this value.

    The Trainer replaces `auto` by its own arguments, sizes by the model's width ("DeepSpeed Integration" in transformers'
    documentation).
    """
    zero: dict[str, Any] = {"stage": int(value[0])}
    if zero["stage"]:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
    if zero["stage"] == 3:
        zero |= dict.fromkeys(("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto")
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if "offload" in value:
        disk = {"nvme_path": value.removeprefix(NVME)} if value.startswith(NVME) else {}
        place = {"device": "nvme" if disk else "cpu", **disk, "pin_memory": True}
        zero["offload_optimizer"] = place
        if not value.endswith("_optimizer"):
            zero["offload_param"] = dict(place)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    config: dict[str, Any] = {"zero_optimization": zero, **dict.fromkeys(sizes, "auto")}
    config |= {name: {"enabled": "auto"} for name in ("bf16", "fp16")}
    if "offload" in value:
        # An optimizer on the host must be DeepSpeed's own (DeepSpeedCPUAdam), which it makes if it is named here.
        config["optimizer"] = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")}
    return config


def _from_user(context: Context) -> str:
    """`own` is a config of the user's: it stays as it is."""
    config = context.arguments.get(FIELD)
    if not config:
        return NONE
    zero = (config.get("zero_optimization") if isinstance(config, Mapping) else None) or {}
    nvme_path = (zero.get("offload_optimizer") or {}).get("nvme_path", "/")
    return next((value for value in (f"{NVME}{nvme_path}", *NAMES[1:]) if config == zero_config(value)), OWN)


def _apply(value: Value, environment: Environment) -> Effect:
    if value == NONE:
        return Effect(contradicts=(FIELD,))
    if value == OWN:
        return Effect({FIELD: None}, environment=ALONE)
    return Effect({FIELD: zero_config(str(value))}, environment=ALONE)


def engine_config(trainer: Any) -> Mapping[str, Any] | None:
    """The config of the DeepSpeed engine that trains, with every "auto" replaced, or None."""
    engine = getattr(trainer, "model_wrapped", None)
    config = getattr(engine, "config", None) if type(engine).__name__ == "DeepSpeedEngine" else None
    return config if isinstance(config, Mapping) else None


def _read_back(observed: Observed) -> str | None:
    """Value in the engine's own config: stage, and what it offloads."""
    config = engine_config(observed.trainer)
    if config is None:
        return NONE if not getattr(observed.trainer, "is_deepspeed_enabled", False) else None
    zero = config.get("zero_optimization", {})
    optimizer, weights = (zero.get(name) or {} for name in ("offload_optimizer", "offload_param"))
    if optimizer.get("device") == "nvme":
        return NVME + str(optimizer.get("nvme_path"))
    held = {"cpu": "_offload_all" if weights.get("device") == "cpu" else "_offload_optimizer"}
    return f"{zero.get('stage', 0)}{held.get(str(optimizer.get('device')), '')}"


def _unavailable(value: Value, context: Context) -> Exclusion | None:
    environment = context.environment
    if value == OWN:
        return None
    needed = BYTES_PER_PARAMETER * context.workload.parameters
    if needed < environment.total_memory_bytes:
        numbers = {"gigabytes": needed / 1e9, "gpu_gigabytes": environment.total_memory_bytes / 1e9}
        return Exclusion(ExclusionKind.FITS, numbers)
    if "offload" not in str(value) and environment.device_count < 2:
        text = "there is one GPU, so nothing to divide between: only offloading frees its memory"
        return Exclusion(ExclusionKind.DEVICE, detail=text)
    return None


SETTING = Setting(
    name="zero",
    values=NAMES,
    summary="ZeRO divides states, gradients and weights between GPUs or keeps them in the host's memory: larger models fit.",
    read=_read,
    from_user=_from_user,
    apply=_apply,
    read_back=_read_back,
    unavailable=first_of(needs_gpu("it divides or frees a GPU's memory"), needs_package("deepspeed"), _unavailable),
    costs=Costs(
        traceable=lambda value: value in (NONE, *STAGES), spares_gradients=lambda value: "offload" in str(value)
    ),
    forbidden={
        "optimizer": _forbidden_optimizer,
        RANKS: not_combined(
            "it divides between ranks, and there is one", lambda value, ranks: value in STAGES and int(ranks) == 1
        ),
        "fsdp": not_combined("FSDP divides the model already", lambda value, sharding: NONE not in (value, sharding)),
        # Its engine refuses weights of another dtype than its config's, and casts those of bf16 itself.
        "precision": not_combined(
            "DeepSpeed casts weights itself",
            lambda value, precision: value not in (NONE, OWN) and precision in ("bf16_weights", "bf16_frozen"),
        ),
    },
)
