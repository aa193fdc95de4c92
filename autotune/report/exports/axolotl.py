"""The answer for axolotl: a fragment of its YAML; every key stands in its schema."""

from collections.abc import Mapping
from typing import Any

from autotune.report.exports.answer import CHECKPOINTING, Answer
from autotune.report.exports.commented_yaml import commented_yaml

SAME = (
    *("gradient_accumulation_steps", "auto_find_batch_size", "learning_rate", "weight_decay", "optim_args"),
    *("optim_target_modules", "lr_scheduler_kwargs", "adam_epsilon", "adam_beta1", "adam_beta2", "max_grad_norm"),
    *("dataloader_pin_memory", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_drop_last"),
    *("accelerator_config", "remove_unused_columns", "seed", "ddp_timeout", "ddp_bucket_cap_mb"),
    *("ddp_broadcast_buffers", "ddp_find_unused_parameters", "metric_for_best_model", "greater_is_better"),
    *("tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "max_steps"),
    *("warmup_steps", "warmup_ratio", "eval_steps", "eval_strategy", "save_steps", "save_strategy"),
    *("save_total_limit", "logging_steps", "load_best_model_at_end", "save_only_model", "neftune_noise_alpha"),
)
"""Fields of TrainingArguments that axolotl's schema has under the same name (axolotl-ai-cloud/axolotl,
src/axolotl/utils/schemas/config.py and training.py)."""

RENAMED = {
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "optim": "optimizer",
    "lr_scheduler_type": "lr_scheduler",
    "num_train_epochs": "num_epochs",
}
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
LIGER_KEYS = {
    "rope": "liger_rope",
    "rms_norm": "liger_rms_norm",
    "layer_norm": "liger_layer_norm",
    "swiglu": "liger_glu_activation",
    "geglu": "liger_glu_activation",
    "cross_entropy": "liger_cross_entropy",
    "fused_linear_cross_entropy": "liger_fused_linear_cross_entropy",
}
"""Keys of `liger_kernel_config` in axolotl's words (src/axolotl/integrations/liger/args.py)."""

LIGER_DEFAULTS = ("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy")
"""What `use_liger_kernel` switches on by itself (liger_kernel.transformers.monkey_patch)."""

GROUPED = {"group_by_length": True, "train_sampling_strategy": "group_by_length"}
"""The older and the newer field that put samples of like lengths together."""

OLDER_ATTENTION = {
    "eager": "eager_attention",
    "sdpa": "sdp_attention",
    "flash_attention_2": "flash_attention",
    "flex_attention": "flex_attention",
}
"""A flag for each, from before `attn_implementation` was everyone's word (axolotl pull request 3602)."""

NEWER_KWARGS = ("every_n_layers", "offload")
"""Keywords of `activation_checkpointing_kwargs` that torch's own checkpointing does not know."""

FSDP_KEYS = (
    *("activation_checkpointing", "cpu_ram_efficient_loading", "state_dict_type", "auto_wrap_policy"),
    *("transformer_layer_cls_to_wrap", "min_num_params", "reshard_after_forward"),
)
"""Keys of `fsdp_config` that both have (src/axolotl/utils/schemas/fsdp.py); `cpu_offload` is its `offload_params`."""

HANDLED = (
    *SAME,
    *RENAMED,
    *CHECKPOINTING,
    *(f"{name}_kwargs" for name in CHECKPOINTING),
    *("bf16", "fp16", "use_cpu", "use_liger_kernel", "liger_kernel_config", "deepspeed"),
    *("fsdp", "fsdp_config"),
    *GROUPED,
)
ADAPTER_KEYS = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
QUANTIZATION = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
"""Fields of BitsAndBytesConfig that `bnb_config_kwargs` hands on (src/axolotl/utils/schemas/peft.py)."""


def axolotl_yaml(answer: Answer) -> str:
    """Sizes, precision, optimizer, checkpointing, attention, kernels, data loader and compilation."""
    fields = answer.fields
    values: dict[str, Any] = {RENAMED[name]: value for name, value in fields.items() if name in RENAMED}
    values |= {name: fields[name] for name in SAME if name in fields}
    values |= {"bf16": answer.mixed_precision == "bf16", "fp16": answer.mixed_precision == "fp16"}
    if answer.mixed_precision == "no" and answer.model_arguments.get("dtype") == "bfloat16":
        values["bfloat16"] = True  # without autocast
    values |= _checkpointing(answer)
    if answer.attention:
        values["attn_implementation"] = answer.attention
    if experts := answer.model_arguments.get("experts_implementation"):
        values["experts_implementation"] = experts
    if fields.get("use_liger_kernel"):
        values |= _liger(fields.get("liger_kernel_config") or {})
    if answer.deepspeed_file:
        values["deepspeed"] = answer.deepspeed_file
    if answer.flattening:
        values["batch_flattening"] = True
    if any(fields.get(name) == word for name, word in GROUPED.items()):
        values["group_by_length"] = True
    values |= _adapter(answer)
    if fields.get("fsdp"):
        values |= _fsdp(answer.fsdp_config)
    if answer.sequence_length:
        values["sequence_len"] = answer.sequence_length
    return commented_yaml(_head(answer), values, _missing(answer), _notes(answer))


def _checkpointing(answer: Answer) -> dict[str, Any]:
    kwargs = {name: value for name, value in answer.checkpointing_kwargs.items() if name not in NEWER_KWARGS}
    kept = {"gradient_checkpointing_kwargs": kwargs} if kwargs and answer.checkpointing else {}
    return {"gradient_checkpointing": answer.checkpointing, **kept}


def _liger(config: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels that are on by themselves, and what the answer says of each."""
    kernels = dict.fromkeys(LIGER_DEFAULTS, True) | {name: config[name] for name in LIGER_KEYS if name in config}
    return {"plugins": [LIGER_PLUGIN], **{LIGER_KEYS[name]: bool(on) for name, on in kernels.items()}}


def _fsdp(config: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {name: _joined(config[name]) for name in FSDP_KEYS if name in config}
    if "cpu_offload" in config:
        kept["offload_params"] = bool(config["cpu_offload"])
    return {"fsdp_version": config.get("version", 2), "fsdp_config": kept}


def _joined(value: Any) -> Any:
    return ",".join(value) if isinstance(value, list) else value


def _adapter(answer: Answer) -> dict[str, Any]:
    if not answer.adapter:
        return {}
    quantization, targets = answer.quantization, answer.adapter.get("target_modules")
    four = bool(quantization.get("load_in_4bit"))
    made: dict[str, Any] = {"adapter": "qlora" if four else "lora"}
    made |= {new: answer.adapter[name] for name, new in ADAPTER_KEYS.items() if name in answer.adapter}
    if targets:
        made |= {"lora_target_linear": True} if targets == "all-linear" else {"lora_target_modules": targets}
    if four:
        made["load_in_4bit"] = True
        made["bnb_config_kwargs"] = {name: quantization[name] for name in QUANTIZATION if name in quantization}
    return made


def _missing(answer: Answer) -> dict[str, Any]:
    kwargs = {f"checkpointing {name}": answer.checkpointing_kwargs.get(name) for name in NEWER_KWARGS}
    said = ["dtype", "attn_implementation", "experts_implementation", "packing", "quantization load_in_4bit"]
    said += [f"adapter {name}" for name in (*ADAPTER_KEYS, "target_modules", "task_type")]
    rest = answer.others(*said, *(f"quantization {name}" for name in QUANTIZATION))
    sharing = {
        f"fsdp_config {name}": value
        for name, value in answer.fsdp_config.items()
        if name not in (*FSDP_KEYS, "version", "cpu_offload")
    }
    kernels = answer.fields.get("liger_kernel_config") or {}
    kwargs |= {f"liger_kernel_config {name}": value for name, value in kernels.items() if name not in LIGER_KEYS}
    return (
        answer.without(HANDLED) | rest | sharing | {name: value for name, value in kwargs.items() if value is not None}
    )


def _head(answer: Answer) -> list[str]:
    ranks = answer.data_parallel_size
    start = "axolotl train" if ranks == 1 else f"accelerate launch --num_processes {ranks} -m axolotl.cli.train"
    return [
        f"Lines for your axolotl YAML beside base_model ({answer.model_place}), datasets, learning_rate, output_dir.",
        f"{answer.environment} {start} YOURS.yaml",
    ]


def _notes(answer: Answer) -> list[str]:
    told = ["no counterpart here: a training on the CPU, as this was measured"] if answer.is_cpu else []
    if answer.attention in OLDER_ATTENTION:
        told.append(f"an older axolotl says {OLDER_ATTENTION[answer.attention]}: true instead of attn_implementation")
    kept = answer.model_arguments.get("dtype", "float32")
    if answer.mixed_precision != "no" and kept == "float32":
        told.append(
            "measured with float32 weights; axolotl loads them in 16 bits where bf16 or fp16 is true: less memory, "
            "other numerics"
        )
    return told
