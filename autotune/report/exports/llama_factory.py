"""The answer for LLaMA-Factory: a fragment of its YAML; the model's arguments have names of its own."""

from typing import Any

from autotune.report.exports.answer import CHECKPOINTING_FIELDS, Answer, renamed, without
from autotune.report.exports.commented_yaml import commented_yaml

ATTENTION = {"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2", "flash_attention_3": "fa3"}
"""`AttentionFunction` of hiyouga/LLaMA-Factory, src/llamafactory/extras/constants.py."""

ADAPTER_KEYS = {"r": "lora_rank", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
QUANTIZATION_KEYS = {
    "bnb_4bit_quant_type": "quantization_type",
    "bnb_4bit_use_double_quant": "double_quantization",
}
"""Fields of LoraConfig and BitsAndBytesConfig -> its own (src/llamafactory/hparams/finetuning_args.py, model_args.py)."""

HANDLED = (
    *CHECKPOINTING_FIELDS,
    *("bf16", "fp16", "use_liger_kernel", "liger_kernel_config", "deepspeed", "remove_unused_columns"),
)
"""Fields under its own names below; remove_unused_columns it always sets itself."""


def llama_factory_yaml(answer: Answer) -> str:
    """Every other field of TrainingArguments under its own name.

    Its parser refuses names that its transformers does not know, so the newer checkpointing is written as its own
    `disable_gradient_checkpointing`, which is false by default (src/llamafactory/hparams/model_args.py).
    """
    kwargs, adapter, quantization = answer.checkpointing_kwargs, answer.setup.adapter, answer.quantization
    targets = _targets(adapter.get("target_modules"))
    is_quantized = bool(adapter and quantization.get("load_in_4bit"))
    values: dict[str, Any] = {
        **without(answer.fields, HANDLED),
        **answer.precision_flags,
        "disable_gradient_checkpointing": not answer.checkpointing,
        "finetuning_type": "lora" if adapter else "full",  # its own default is lora
        **renamed(adapter, ADAPTER_KEYS),
        "lora_target": targets,
        "quantization_bit": 4 if is_quantized else None,
        **(renamed(quantization, QUANTIZATION_KEYS) if is_quantized else {}),
        # The Trainer's default is the non-reentrant kind, LLaMA-Factory's the other.
        "use_reentrant_gc": bool(kwargs.get("use_reentrant", False)) if answer.checkpointing else None,
        "pure_bf16": answer.has_16_bit_weights or None,
        "flash_attn": ATTENTION.get(answer.attention or ""),
        "enable_liger_kernel": bool(answer.fields.get("use_liger_kernel")) or None,
        "deepspeed": answer.deepspeed_file,
        "cutoff_len": answer.sequence_length or None,
    }
    missing = {
        **{f"checkpointing {name}": value for name, value in without(kwargs, ["use_reentrant"]).items()},
        **answer.others(
            ("dtype", *(["attn_implementation"] if answer.attention in ATTENTION else [])),
            (*ADAPTER_KEYS, "task_type", *(["target_modules"] if targets else [])),
            ("load_in_4bit", *QUANTIZATION_KEYS),
        ),
        "liger_kernel_config": answer.fields.get("liger_kernel_config"),
    }
    ranks = f"NPROC_PER_NODE={answer.ranks} " if answer.ranks > 1 else ""
    head = [
        f"Lines for your LLaMA-Factory YAML beside model_name_or_path ({answer.model_place}), stage, do_train, "
        "dataset, template, output_dir.",
        f"FORCE_TORCHRUN=1 {ranks}{answer.environment} llamafactory-cli train YOURS.yaml",
    ]
    return commented_yaml(head, _known(values), _known(missing))


def _targets(targets: Any) -> str | None:
    """`all` or names; None for an expression, which it has no counterpart for."""
    if targets == "all-linear":
        return "all"
    return ",".join(targets) if isinstance(targets, list) else None


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
