"""The answer for TRL: a file for `trl sft --config`, which TrlParser reads."""

from typing import Any

from autotune.report.exports.answer import CHECKPOINTING_FIELDS, Answer, renamed, without
from autotune.report.exports.commented_yaml import commented_yaml

MODEL_KEYS = ("dtype", "attn_implementation")
"""Of `trl.ModelConfig`, under the names of `from_pretrained`."""

ADAPTER_KEYS = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
QUANTIZATION_KEYS = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
"""Fields of LoraConfig and BitsAndBytesConfig, and what ModelConfig calls them."""


def trl_yaml(answer: Answer) -> str:
    """Every field of TrainingArguments under its own name (SFTConfig is one), and the model's.

    SFTConfig's own defaults differ (checkpointing and bf16 on), so both are always written, checkpointing under the name
    that its every version knows.
    """
    setup, model = answer.setup, answer.setup.model_arguments
    values: dict[str, Any] = {
        **without(answer.fields, (*CHECKPOINTING_FIELDS, "deepspeed")),
        **answer.precision_flags,
        "gradient_checkpointing": answer.checkpointing,
        "gradient_checkpointing_kwargs": answer.checkpointing_kwargs or None,
        "deepspeed": answer.deepspeed_file,
        "max_length": answer.sequence_length,
        **{name: model[name] for name in MODEL_KEYS if name in model},
        **(_adapter(answer) if setup.adapter else {}),
        "padding_free": bool(setup.data_arguments.get("packing")) or None,
        "pad_to_multiple_of": setup.data_arguments.get("pad_to_multiple_of") or None,
    }
    missing = answer.others(
        (*MODEL_KEYS, "packing", "pad_to_multiple_of"),
        (*ADAPTER_KEYS, "target_modules", "task_type"),
        QUANTIZATION_KEYS,
    )
    ranks = f" --num_processes {answer.ranks}" if answer.ranks > 1 else ""
    head = [
        f"{answer.environment} trl sft --config trl.yaml{ranks} --model_name_or_path {answer.model_place} "
        "--dataset_name YOURS --output_dir output",
        "What is not here (learning rate, schedule, epochs) is TRL's own default, which differs from the Trainer's.",
    ]
    return commented_yaml(head, {name: value for name, value in values.items() if value is not None}, missing)


def _adapter(answer: Answer) -> dict[str, Any]:
    adapter = answer.setup.adapter
    values: dict[str, Any] = {"use_peft": True, "lora_dropout": 0.0}  # PEFT's own default, TRL's is another
    values |= renamed(adapter, ADAPTER_KEYS)
    if targets := adapter.get("target_modules"):
        values["lora_target_modules"] = [targets] if isinstance(targets, str) else list(targets)
    return values | renamed(adapter, {"task_type": "lora_task_type"}) | renamed(answer.quantization, QUANTIZATION_KEYS)
