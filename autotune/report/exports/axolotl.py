"""The answer for axolotl: a fragment of its YAML; every key is in its schema."""

from collections.abc import Mapping
from typing import Any

from autotune.report.exports.answer import Answer, joined, without
from autotune.report.exports.commented_yaml import ToolConfig, tool_config
from autotune.space.settings.compile import MODE

SAME = (
    *("gradient_accumulation_steps", "auto_find_batch_size", "learning_rate", "weight_decay", "optim_args"),
    *("optim_target_modules", "lr_scheduler_kwargs", "adam_epsilon", "adam_beta1", "adam_beta2", "max_grad_norm"),
    *("dataloader_pin_memory", "dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_drop_last"),
    *("accelerator_config", "remove_unused_columns", "seed", "ddp_timeout", "ddp_bucket_cap_mb"),
    *("ddp_broadcast_buffers", "ddp_find_unused_parameters", "metric_for_best_model", "greater_is_better"),
    *("tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "max_steps"),
    *("warmup_steps", "warmup_ratio", "eval_steps", "eval_strategy", "save_steps", "save_strategy"),
    *("save_total_limit", "logging_steps", "load_best_model_at_end", "save_only_model", "neftune_noise_alpha"),
    *("attn_implementation", "experts_implementation"),
)
"""Names that axolotl's schema shares with us (axolotl-ai-cloud/axolotl,
src/axolotl/utils/schemas/config.py and training.py)."""

NAMES = dict(zip(SAME, SAME, strict=True)) | {
    "per_device_train_batch_size": "micro_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "optim": "optimizer",
    "lr_scheduler_type": "lr_scheduler",
    "num_train_epochs": "num_epochs",
    "packing": "batch_flattening",
    "adapter r": "lora_r",
    "adapter lora_alpha": "lora_alpha",
    "quantization load_in_4bit": "load_in_4bit",
}
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")
"""All that its `torch_compile_mode` takes; with another one its schema refuses the file."""

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
"""Kernels that `use_liger_kernel` switches on by default (liger_kernel.transformers.monkey_patch)."""

GROUPED = {"group_by_length": True, "train_sampling_strategy": "group_by_length"}
"""The older and the newer field that batch samples of similar length."""

OLDER_ATTENTION = {
    "eager": "eager_attention",
    "sdpa": "sdp_attention",
    "flash_attention_2": "flash_attention",
    "flex_attention": "flex_attention",
}
"""A flag for each, from before axolotl had `attn_implementation` (its pull request 3602)."""

CHECKPOINT_KEYS = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug")
"""Keywords of torch's own checkpointing; transformers' newer ones axolotl does not know."""

FSDP_KEYS = (
    *("activation_checkpointing", "cpu_ram_efficient_loading", "state_dict_type", "auto_wrap_policy"),
    *("transformer_layer_cls_to_wrap", "min_num_params", "reshard_after_forward"),
)
"""Keys of `fsdp_config` that both have (src/axolotl/utils/schemas/fsdp.py); `cpu_offload` is its `offload_params`."""

QUANTIZATION = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
"""Fields of BitsAndBytesConfig that `bnb_config_kwargs` hands on (src/axolotl/utils/schemas/peft.py)."""

COVERED = (
    *(*GROUPED, "use_cpu", "use_liger_kernel", "fsdp", "dtype", "adapter target_modules", "adapter task_type"),
    *(f"checkpointing {name}" for name in CHECKPOINT_KEYS),
    *(f"fsdp_config {name}" for name in (*FSDP_KEYS, "version", "cpu_offload")),
    *(f"liger_kernel_config {name}" for name in LIGER_KEYS),
    *(f"quantization {name}" for name in QUANTIZATION),
)


def axolotl_config(answer: Answer) -> ToolConfig:
    """Sizes, precision, optimizer, checkpointing, attention, kernels, data loader and compilation."""
    fields = answer.fields
    kwargs = {name: value for name, value in answer.checkpointing_kwargs.items() if name in CHECKPOINT_KEYS}
    values: dict[str, Any] = {
        **answer.precision_flags,
        "bfloat16": answer.has_16_bit_weights or None,
        "gradient_checkpointing": answer.checkpointing,
        "gradient_checkpointing_kwargs": (answer.checkpointing and kwargs) or None,
        **(_liger(fields.get("liger_kernel_config") or {}) if fields.get("use_liger_kernel") else {}),
        "deepspeed": answer.deepspeed_file,
        "group_by_length": any(fields.get(name) == value for name, value in GROUPED.items()) or None,
        **(_adapter(answer) if answer.setup.adapter else {}),
        **(_fsdp(answer.fsdp_config) if fields.get("fsdp") else {}),
        "sequence_len": answer.sequence_length,
    }
    launcher = f"accelerate launch --num_processes {answer.ranks} -m axolotl.cli.train"
    head = [
        f"Lines for your axolotl YAML next to base_model ({answer.model_place}), datasets, learning_rate, output_dir.",
        f"{answer.environment} {'axolotl train' if answer.ranks == 1 else launcher} YOURS.yaml",
    ]
    parts = answer.parts("checkpointing", "fsdp_config", "liger_kernel_config")
    names = NAMES if fields.get(MODE) in (None, *COMPILE_MODES) else without(NAMES, (MODE,))
    return tool_config(head, parts, names, values, COVERED, _notes(answer))


def _liger(config: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels that are on by default, and those that the answer switches on or off."""
    kernels = dict.fromkeys(LIGER_DEFAULTS, True) | {name: config[name] for name in LIGER_KEYS if name in config}
    return {"plugins": [LIGER_PLUGIN], **{LIGER_KEYS[name]: bool(on) for name, on in kernels.items()}}


def _fsdp(config: dict[str, Any]) -> dict[str, Any]:
    fsdp: dict[str, Any] = {name: joined(config[name]) for name in FSDP_KEYS if name in config}
    if "cpu_offload" in config:
        fsdp["offload_params"] = bool(config["cpu_offload"])
    return {"fsdp_version": config.get("version", 2), "fsdp_config": fsdp}


def _adapter(answer: Answer) -> dict[str, Any]:
    quantization, targets = answer.quantization, answer.setup.adapter.get("target_modules")
    is_quantized = bool(quantization.get("load_in_4bit"))
    values: dict[str, Any] = {"adapter": "qlora" if is_quantized else "lora"}
    if targets:
        values |= {"lora_target_linear": True} if targets == "all-linear" else {"lora_target_modules": targets}
    if is_quantized:
        values["bnb_config_kwargs"] = {name: quantization[name] for name in QUANTIZATION if name in quantization}
    return values


def _notes(answer: Answer) -> list[str]:
    notes = ["no counterpart here: a training on the CPU, as this was measured"] if answer.is_cpu else []
    if flag := OLDER_ATTENTION.get(answer.setup.model_arguments.get("attn_implementation") or ""):
        notes.append(f"older versions of axolotl: {flag}: true, not attn_implementation")
    if answer.mixed_precision != "no" and answer.setup.model_arguments.get("dtype", "float32") == "float32":
        notes.append(
            "measured with float32 weights; axolotl loads them in 16 bits if bf16 or fp16 is true: less memory, "
            "other numerics"
        )
    return notes
