"""The answer for LLaMA-Factory: a fragment of its YAML; the model's arguments have names of its own."""

from typing import Any

from autotune.report.exports.answer import Answer, joined
from autotune.report.exports.commented_yaml import ToolConfig, tool_config

ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2", "flash_attention_3": "fa3"}
"""`AttentionFunction` of hiyouga/LLaMA-Factory, src/llamafactory/extras/constants.py."""

NAMES = {
    "use_liger_kernel": "enable_liger_kernel",
    "adapter r": "lora_rank",
    "adapter lora_alpha": "lora_alpha",
    "quantization bnb_4bit_quant_type": "quantization_type",
    "quantization bnb_4bit_use_double_quant": "double_quantization",
}
"""Fields of LoraConfig and BitsAndBytesConfig -> its own (src/llamafactory/hparams/finetuning_args.py, model_args.py)."""

COVERED = (
    *("remove_unused_columns", "dtype", "checkpointing use_reentrant", "adapter task_type"),
    "quantization load_in_4bit",
)
"""Fields that are set below under LLaMA-Factory's keys; it always sets remove_unused_columns itself."""


def llama_factory_config(answer: Answer) -> ToolConfig:
    """Every other field of TrainingArguments under its own name.

    Its parser refuses names that its transformers does not know, so the newer checkpointing is written as its own
    `disable_gradient_checkpointing`, which is false by default (src/llamafactory/hparams/model_args.py).
    """
    adapter, targets = answer.setup.adapter, answer.setup.adapter.get("target_modules")
    attention = ATTENTION.get(answer.setup.model_arguments.get("attn_implementation") or "")
    is_target = targets == "all-linear" or isinstance(targets, list)  # an expression has no counterpart
    is_reentrant = bool(answer.checkpointing_kwargs.get("use_reentrant", False))
    values: dict[str, Any] = {
        **answer.precision_flags,
        "disable_gradient_checkpointing": not answer.checkpointing,
        "finetuning_type": "lora" if adapter else "full",  # its own default is lora
        "lora_target": ("all" if targets == "all-linear" else joined(targets)) if is_target else None,
        "quantization_bit": 4 if adapter and answer.quantization.get("load_in_4bit") else None,
        # The Trainer's default is the non-reentrant kind, LLaMA-Factory's the other.
        "use_reentrant_gc": is_reentrant if answer.checkpointing else None,
        "pure_bf16": answer.has_16_bit_weights or None,
        "flash_attn": attention,
        "deepspeed": answer.deepspeed_file,
        "cutoff_len": answer.sequence_length or None,
    }
    covered = [
        *COVERED,
        *(["attn_implementation"] if attention else []),
        *(["adapter target_modules"] if is_target else []),
    ]
    ranks = f"NPROC_PER_NODE={answer.ranks} " if answer.ranks > 1 else ""
    head = [
        f"Lines for your LLaMA-Factory YAML next to model_name_or_path ({answer.model_place}), stage, do_train, "
        "dataset, template, output_dir.",
        f"FORCE_TORCHRUN=1 {ranks}{answer.environment} llamafactory-cli train YOURS.yaml",
    ]
    names = {name: name for name in answer.fields if name not in (*COVERED, "liger_kernel_config")} | NAMES
    return tool_config(head, answer.parts("checkpointing"), names, values, covered)
