"""The answer for TRL: a file for `trl sft --config`, which TrlParser reads."""

from typing import Any

from autotune.report.exports.answer import CHECKPOINTING, Answer
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
    """Every field of TrainingArguments under its own name (SFTConfig is one), the model's beside them.

    SFTConfig's own defaults differ (checkpointing and bf16 on), so both always stand here, checkpointing by the name
    that its every version knows.
    """
    own = {name for one in CHECKPOINTING for name in (one, f"{one}_kwargs")} | {"deepspeed"}
    values: dict[str, Any] = {
        **answer.without(own),
        "bf16": answer.mixed_precision == "bf16",
        "fp16": answer.mixed_precision == "fp16",
        "gradient_checkpointing": answer.checkpointing,
    }
    if answer.checkpointing_kwargs:
        values["gradient_checkpointing_kwargs"] = answer.checkpointing_kwargs
    if answer.deepspeed_file:
        values["deepspeed"] = answer.deepspeed_file
    if answer.sequence_length:
        values["max_length"] = answer.sequence_length
    values |= {name: answer.model_arguments[name] for name in MODEL_KEYS if name in answer.model_arguments}
    values |= _adapter(answer) | _batches(answer)
    said = [*MODEL_KEYS, *(f"adapter {name}" for name in (*ADAPTER_KEYS, "target_modules", "task_type"))]
    said += ["packing", "pad_to_multiple_of", *(f"quantization {name}" for name in QUANTIZATION_KEYS)]
    missing = answer.others(*said)
    ranks = f" --num_processes {answer.data_parallel_size}" if answer.data_parallel_size > 1 else ""
    head = [
        f"{answer.environment} trl sft --config trl.yaml{ranks} --model_name_or_path {answer.model_place} "
        "--dataset_name YOURS --output_dir output",
        "What is not here (learning rate, schedule, epochs) is TRL's own default, which differs from the Trainer's.",
    ]
    return commented_yaml(head, values, missing)


def _adapter(answer: Answer) -> dict[str, Any]:
    if not answer.adapter:
        return {}
    made: dict[str, Any] = {"use_peft": True, "lora_dropout": 0.0}  # PEFT's own default, TRL's is another
    made |= {new: answer.adapter[name] for name, new in ADAPTER_KEYS.items() if name in answer.adapter}
    if targets := answer.adapter.get("target_modules"):
        made["lora_target_modules"] = [targets] if isinstance(targets, str) else list(targets)
    if "task_type" in answer.adapter:
        made["lora_task_type"] = answer.adapter["task_type"]
    quantization = answer.quantization
    return made | {new: quantization[name] for name, new in QUANTIZATION_KEYS.items() if name in quantization}


def _batches(answer: Answer) -> dict[str, Any]:
    made: dict[str, Any] = {"padding_free": True} if answer.flattening else {}
    if multiple := answer.data_arguments.get("pad_to_multiple_of"):
        made["pad_to_multiple_of"] = multiple
    return made
