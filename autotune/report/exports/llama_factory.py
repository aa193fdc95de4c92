"""The answer for LLaMA-Factory: a fragment of its YAML; its training arguments are Hugging Face's, its model's its own."""

from typing import Any

from autotune.report.exports.answer import CHECKPOINTING, Answer
from autotune.report.exports.commented_yaml import commented_yaml

ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2", "flash_attention_3": "fa3"}
"""`AttentionFunction` of hiyouga/LLaMA-Factory, src/llamafactory/extras/constants.py."""

ADAPTER_KEYS = {"r": "lora_rank", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
QUANTIZATION_KEYS = {
    "bnb_4bit_quant_type": "quantization_type",
    "bnb_4bit_use_double_quant": "double_quantization",
}
"""Fields of LoraConfig and BitsAndBytesConfig in its words (src/llamafactory/hparams/finetuning_args.py, model_args.py)."""

HANDLED = (
    *CHECKPOINTING,
    *(f"{name}_kwargs" for name in CHECKPOINTING),
    *("bf16", "fp16", "use_liger_kernel", "liger_kernel_config", "deepspeed", "remove_unused_columns"),
)
"""Said in its own words, or (remove_unused_columns) set by itself whatever one says."""


def llama_factory_yaml(answer: Answer) -> str:
    """Every other field of TrainingArguments under its own name.

    Its parser refuses names that its transformers does not know, so the newer checkpointing is said in its own words:
    `disable_gradient_checkpointing`, which is false by default (src/llamafactory/hparams/model_args.py).
    """
    values: dict[str, Any] = {
        **answer.without(HANDLED),
        "bf16": answer.mixed_precision == "bf16",
        "fp16": answer.mixed_precision == "fp16",
        "disable_gradient_checkpointing": not answer.checkpointing,
        "finetuning_type": "lora" if answer.adapter else "full",  # its own default is lora
        **_adapter(answer),
    }
    if answer.checkpointing:
        # The Trainer's default is the non-reentrant kind, LLaMA-Factory's the other.
        values["use_reentrant_gc"] = bool(answer.checkpointing_kwargs.get("use_reentrant", False))
    if answer.mixed_precision == "no" and answer.model_arguments.get("dtype") == "bfloat16":
        values["pure_bf16"] = True
    if answer.attention in ATTENTION:
        values["flash_attn"] = ATTENTION[answer.attention]
    if answer.fields.get("use_liger_kernel"):
        values["enable_liger_kernel"] = True
    if answer.deepspeed_file:
        values["deepspeed"] = answer.deepspeed_file
    if answer.sequence_length:
        values["cutoff_len"] = answer.sequence_length
    return commented_yaml(_head(answer), values, _missing(answer))


def _adapter(answer: Answer) -> dict[str, Any]:
    adapter, quantization = answer.adapter, answer.quantization
    made = {new: adapter[name] for name, new in ADAPTER_KEYS.items() if name in adapter}
    if "lora_target" in (targets := _targets(answer)):
        made |= targets
    if adapter and quantization.get("load_in_4bit"):
        made["quantization_bit"] = 4
        made |= {new: quantization[name] for name, new in QUANTIZATION_KEYS.items() if name in quantization}
    return made


def _targets(answer: Answer) -> dict[str, str]:
    """`all` or names; an expression cannot be said."""
    targets = answer.adapter.get("target_modules")
    if targets == "all-linear":
        return {"lora_target": "all"}
    return {"lora_target": ",".join(targets)} if isinstance(targets, list) else {}


def _missing(answer: Answer) -> dict[str, Any]:
    said = ["dtype", "quantization load_in_4bit", *(f"quantization {name}" for name in QUANTIZATION_KEYS)]
    said += [f"adapter {name}" for name in (*ADAPTER_KEYS, "task_type")]
    said += ["adapter target_modules"] if _targets(answer) else []
    said += ["attn_implementation"] if answer.attention in ATTENTION else []
    rest = answer.others(*said)
    kwargs = {name: value for name, value in answer.checkpointing_kwargs.items() if name != "use_reentrant"}
    config = {"liger_kernel_config": answer.fields.get("liger_kernel_config")}
    told = {f"checkpointing {name}": value for name, value in kwargs.items()} | rest | config
    return {name: value for name, value in told.items() if value is not None}


def _head(answer: Answer) -> list[str]:
    ranks = "FORCE_TORCHRUN=1 " + (
        f"NPROC_PER_NODE={answer.data_parallel_size} " if answer.data_parallel_size > 1 else ""
    )
    return [
        f"Lines for your LLaMA-Factory YAML beside model_name_or_path ({answer.model_place}), stage, do_train, "
        "dataset, template, output_dir.",
        f"{ranks}{answer.environment} llamafactory-cli train YOURS.yaml",
    ]
