"""Answers of all kinds, as a search would hand them over."""

import dataclasses
from typing import Any

from transformers import TrainingArguments

from autotune.report.exports import Answer
from autotune.space.setup import TrainingSetup

PLAIN: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,
    "activation_checkpointing": False,
    "fp16": False,
    "bf16": False,
    "tf32": None,
    "optim": "adamw_torch_fused",
    "dataloader_num_workers": 0,
    "dataloader_pin_memory": False,
    "use_cpu": True,
}
FULL: dict[str, Any] = PLAIN | {
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs": {"use_reentrant": False},
    "bf16": True,
    "optim": "sgd",
    "learning_rate": 0.01,
    "max_grad_norm": 0.5,
    "weight_decay": 0.1,
    "dataloader_num_workers": 1,
    "dataloader_prefetch_factor": 4,
    "dataloader_persistent_workers": True,
    "warmup_steps": 2,
    "neftune_noise_alpha": 5.0,
}


def as_known(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields by the names that the installed transformers has."""
    installed = {field.name for field in dataclasses.fields(TrainingArguments)}
    older = {name: name.replace("activation_", "gradient_") for name in fields if name not in installed}
    return {older.get(name, name): value for name, value in fields.items()}


def answer(
    arguments: dict[str, Any] | None = None,
    model: str = "gpt2-mini",
    auto_class: str = "AutoModelForCausalLM",
    hidden_size: int | None = None,
    **setup: Any,
) -> Answer:
    """The answer of a search on a CPU; further training arguments replace or add to plain ones. setup: its other fields."""
    parts = {"model_arguments": {"dtype": "float32", "attn_implementation": "sdpa"}} | setup
    trained = TrainingSetup(training_arguments=PLAIN | (arguments or {}), **parts)
    return Answer(trained, model, auto_class, sequence_length=96, hidden_size=hidden_size)


ON_A_GPU: dict[str, Any] = {
    "use_cpu": False,
    "dataloader_pin_memory": True,
    "tf32": True,
    "use_liger_kernel": True,
    "torch_compile": True,
    "torch_compile_mode": "max-autotune",
}
EVERY = {
    "plain": answer(),
    "full": answer(FULL),
    "older name": answer({"gradient_checkpointing": True}),
    "on a GPU": answer(
        FULL | ON_A_GPU, model_arguments={"dtype": "float32", "attn_implementation": "flash_attention_2"}
    ),
    "two ranks": answer(FULL | ON_A_GPU, processes=2, process_environment={"NCCL_P2P_DISABLE": "1"}),
    "two ranks of a CPU": answer(FULL, processes=2),
    "sharded": answer(
        FULL
        | ON_A_GPU
        | {
            "fsdp": True,
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"], "limit_all_gathers": True},
        },
        processes=2,
    ),
    "adapter": answer(
        FULL | ON_A_GPU | {"train_sampling_strategy": "group_by_length", "accelerator_config": {"non_blocking": True}},
        adapter={"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
        data_arguments={"packing": True, "pad_to_multiple_of": None},
        model_arguments={
            "dtype": "float32",
            "attn_implementation": "flash_attention_2",
            "quantization_config": {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": "bfloat16",
            },
        },
    ),
    "deepspeed": answer(
        FULL
        | ON_A_GPU
        | {
            "deepspeed": {
                "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto",
                "train_batch_size": "auto",
                "gradient_clipping": "auto",
                "bf16": {"enabled": "auto"},
                "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
                "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
            }
        },
        processes=2,
        hidden_size=64,
    ),
}
