"""The answer for TRL: a file for `trl sft --config`, which TrlParser reads."""

from autotune.report.exports.answer import CHECKPOINTING, Answer
from autotune.report.exports.commented_yaml import commented_yaml

MODEL_KEYS = ("dtype", "attn_implementation")
"""Of `trl.ModelConfig`; its others say how a model is quantized or adapted."""


def trl_yaml(answer: Answer) -> str:
    """Every field of TrainingArguments under its own name (SFTConfig is one), the model's beside them.

    SFTConfig's own defaults differ (checkpointing and bf16 on), so both always stand here, checkpointing by the name
    that its every version knows.
    """
    own = {name for one in CHECKPOINTING for name in (one, f"{one}_kwargs")} | {"deepspeed"}
    values = {
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
    missing = {name: value for name, value in answer.model_arguments.items() if name not in MODEL_KEYS}
    ranks = f" --num_processes {answer.data_parallel_size}" if answer.data_parallel_size > 1 else ""
    head = [
        f"{answer.environment} trl sft --config trl.yaml{ranks} --model_name_or_path {answer.model} "
        "--dataset_name YOURS --output_dir output",
        "What is not here (learning rate, schedule, epochs) is TRL's own default, which differs from the Trainer's.",
    ]
    return commented_yaml(head, values, missing)
