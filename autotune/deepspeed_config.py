"""DeepSpeed's configuration: made for a stage of ZeRO, and with every "auto" that the answer knows as its number."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

AUTO = "auto"
"""What transformers and accelerate fill in themselves."""

STAGES = (0, 1, 2, 3)
PLACES = ("none", "cpu", "nvme")


def zero_config(
    stage: int, offload_optimizer: str = "none", offload_parameters: str = "none", nvme_path: str = "nvme"
) -> dict[str, Any]:
    """A DeepSpeed configuration of this ZeRO stage, its numbers "auto".

    offload_optimizer, offload_parameters: where they lie, one of PLACES; nvme_path: a folder on that disk. Raises
    ValueError where DeepSpeed has no such combination (documentation of `zero_optimization`: optimizers can be moved to
    the CPU from stage 1 on; parameters, and anything to NVMe, at stage 3 alone).
    """
    _check(stage, offload_optimizer, offload_parameters)
    zero: dict[str, Any] = {"stage": stage}
    if stage >= 1:
        zero |= {"contiguous_gradients": True, "overlap_comm": True, "reduce_bucket_size": AUTO}
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": AUTO, "stage3_param_persistence_threshold": AUTO}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    for name, place in (("offload_optimizer", offload_optimizer), ("offload_param", offload_parameters)):
        if place != "none":
            zero[name] = {"device": place, "pin_memory": True} | ({"nvme_path": nvme_path} if place == "nvme" else {})
    sizes = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")
    config: dict[str, Any] = {**dict.fromkeys(sizes, AUTO), "bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO}}
    config["zero_optimization"] = zero
    # The Trainer's own optimizer is kept: DeepSpeed asks to be told so.
    config["zero_allow_untested_optimizer"] = True
    if offload_optimizer != "none":
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def _check(stage: int, offload_optimizer: str, offload_parameters: str) -> None:
    if stage not in STAGES:
        raise ValueError(f"ZeRO has the stages 0 to 3, not {stage!r}")
    for place in (offload_optimizer, offload_parameters):
        if place not in PLACES:
            raise ValueError(f"{place!r} is none of {', '.join(PLACES)}")
    if offload_optimizer != "none" and stage < 1:
        raise ValueError("optimizer states can be moved away from stage 1 on")
    if stage < 3 and (offload_parameters != "none" or offload_optimizer == "nvme"):
        raise ValueError("parameters, and anything on NVMe, can be moved away at stage 3 only")


def resolved(
    config: Mapping[str, Any], arguments: Mapping[str, Any], ranks: int = 1, hidden_size: int | None = None
) -> dict[str, Any]:
    """The configuration with each "auto" as the number that these training arguments mean on so many ranks.

    What only a run knows (its number of steps; the model's hidden size, where it is None) stays "auto". The values are
    those that transformers fills in (`HfTrainerDeepSpeedConfig`); its defaults stand where arguments are silent.
    """
    known = _known(arguments, ranks) | _sized_by(hidden_size)
    exact = deepcopy(dict(config))
    for path, value in known.items():
        *parents, name = path.split(".")
        node: Any = exact
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(name) == AUTO:
            node[name] = value
    return exact


def _known(arguments: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    def said(name: str, default: Any) -> Any:
        value = arguments.get(name)
        return default if value is None else value

    micro, accumulation = said("per_device_train_batch_size", 8), said("gradient_accumulation_steps", 1)
    rate = said("learning_rate", 5e-5)
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * ranks,
        "gradient_clipping": said("max_grad_norm", 1.0),
        "bf16.enabled": bool(said("bf16", False) or said("bf16_full_eval", False)),
        "fp16.enabled": bool(said("fp16", False) or said("fp16_full_eval", False)),
        "optimizer.params.lr": rate,
        "optimizer.params.betas": [said("adam_beta1", 0.9), said("adam_beta2", 0.999)],
        "optimizer.params.eps": said("adam_epsilon", 1e-8),
        "optimizer.params.weight_decay": said("weight_decay", 0.0),
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": rate,
    }


def _sized_by(hidden_size: int | None) -> dict[str, int]:
    """The buckets of `HfTrainerDeepSpeedConfig.trainer_config_finalize`."""
    if hidden_size is None:
        return {}
    square = hidden_size * hidden_size
    return {
        "zero_optimization.reduce_bucket_size": square,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * square),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
