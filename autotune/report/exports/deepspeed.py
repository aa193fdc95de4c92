"""DeepSpeed's configuration with numbers in place of "auto"."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

AUTO = "auto"
"""Value that transformers and accelerate fill in themselves."""


def resolved(
    config: Mapping[str, Any], arguments: Mapping[str, Any], ranks: int = 1, hidden_size: int | None = None
) -> dict[str, Any]:
    """The configuration with each "auto" as the number that these training arguments mean on this number of ranks.

    What only a run knows (its number of steps; the model's hidden size, if it is None) stays "auto", and so do learning rate
    and weight decay that no argument states: every tool fills them in, with defaults of its own, and transformers refuses
    other numbers. The values are those that transformers fills in (`HfTrainerDeepSpeedConfig`); its defaults if there is no
    argument.
    """
    exact = deepcopy(dict(config))
    for path, value in (_numbers(arguments, ranks) | _bucket_sizes(hidden_size)).items():
        *parents, name = path.split(".")
        node: Any = exact
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get(name) == AUTO:
            node[name] = value
    return exact


def _numbers(arguments: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    def argument(name: str, default: Any) -> Any:
        value = arguments.get(name)
        return default if value is None else value

    micro, accumulation = argument("per_device_train_batch_size", 8), argument("gradient_accumulation_steps", 1)
    rate, decay = argument("learning_rate", AUTO), argument("weight_decay", AUTO)
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
        "train_batch_size": micro * accumulation * ranks,
        "gradient_clipping": argument("max_grad_norm", 1.0),
        "bf16.enabled": bool(argument("bf16", False) or argument("bf16_full_eval", False)),
        "fp16.enabled": bool(argument("fp16", False) or argument("fp16_full_eval", False)),
        "optimizer.params.lr": rate,
        "optimizer.params.betas": [argument("adam_beta1", 0.9), argument("adam_beta2", 0.999)],
        "optimizer.params.eps": argument("adam_epsilon", 1e-8),
        "optimizer.params.weight_decay": decay,
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": rate,
    }


def _bucket_sizes(hidden_size: int | None) -> dict[str, int]:
    """The buckets of `HfTrainerDeepSpeedConfig.trainer_config_finalize`."""
    if hidden_size is None:
        return {}
    square = hidden_size * hidden_size
    return {
        "zero_optimization.reduce_bucket_size": square,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * square),
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden_size,
    }
