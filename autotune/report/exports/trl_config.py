"""The answer for TRL: a file for `trl sft --config`, which TrlParser reads."""

from typing import Any

from autotune.report.exports.answer import Answer
from autotune.report.exports.commented_yaml import ToolConfig, tool_config

NAMES = {
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "pad_to_multiple_of": "pad_to_multiple_of",
    "packing": "padding_free",
    "adapter r": "lora_r",
    "adapter lora_alpha": "lora_alpha",
    "adapter task_type": "lora_task_type",
    "quantization load_in_4bit": "load_in_4bit",
    "quantization bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "quantization bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Keys of `trl.ModelConfig` and `SFTConfig` that are not fields of TrainingArguments."""


def trl_config(answer: Answer) -> ToolConfig:
    """Every field of TrainingArguments under its own name (SFTConfig is one), and the model's.

    SFTConfig's own defaults differ (checkpointing and bf16 on), so both are always written, checkpointing under the name
    that its every version knows.
    """
    values: dict[str, Any] = {
        **answer.precision_flags,
        "gradient_checkpointing": answer.checkpointing,
        "gradient_checkpointing_kwargs": answer.checkpointing_kwargs or None,
        "deepspeed": answer.deepspeed_file,
        "max_length": answer.sequence_length,
    }
    if adapter := answer.setup.adapter:
        values |= {"use_peft": True, "lora_dropout": 0.0}  # PEFT's own default, TRL's is another
        if targets := adapter.get("target_modules"):
            values["lora_target_modules"] = [targets] if isinstance(targets, str) else list(targets)
    ranks = f" --num_processes {answer.ranks}" if answer.ranks > 1 else ""
    head = [
        f"{answer.environment} trl sft --config trl.yaml{ranks} --model_name_or_path {answer.model_place} "
        "--dataset_name YOURS --output_dir output",
        "What is not here (learning rate, schedule, epochs) is TRL's own default, which differs from the Trainer's.",
    ]
    names = {name: name for name in answer.fields} | NAMES
    return tool_config(head, answer.parts(), names, values, ("adapter target_modules",))
