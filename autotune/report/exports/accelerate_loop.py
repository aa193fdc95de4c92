"""The answer as a plain training loop on accelerate: a script to paste, complete but for the model and the data."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.report.exports.accelerate_config import start_line
from autotune.report.exports.answer import CHECKPOINTING, CHECKPOINTING_FIELDS, Answer, switch_lines, without
from autotune.report.templates import rendered

IN_CONFIG = ("deepspeed", "fsdp", "fsdp_config")
"""Fields that accelerate_config.yaml sets: the loop must not set them again."""

USED = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("optim", "optim_args", "optim_target_modules", "learning_rate", "weight_decay", "max_grad_norm"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("warmup_ratio", "max_steps", "num_train_epochs", "seed", "bf16", "fp16", "tf32", "use_cpu"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_drop_last"),
    *("dataloader_persistent_workers", "accelerator_config", "use_liger_kernel", "liger_kernel_config"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *CHECKPOINTING_FIELDS,
)
"""Fields that the loop acts on; TrainingArguments itself acts on TF32 and compilation."""

OF_ACCELERATOR: Mapping[str, Any] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}
"""Entries of `accelerator_config` that the loop leaves out, with their defaults (transformers' `AcceleratorConfig`)."""


def accelerate_loop(answer: Answer) -> str:
    """The text of accelerate_loop.py; what the loop does not do is a comment in it."""
    setup, deepspeed = answer.setup, answer.deepspeed or {}
    ranks = f" x {answer.ranks} ranks" if answer.ranks > 1 else ""
    optimizer, config = str(answer.fields.get("optim", "")), answer.fields.get("accelerator_config")
    helpers = {
        "DataLoaderConfiguration": isinstance(config, Mapping) and config.get("non_blocking"),
        "DummyOptim": "optimizer" in deepspeed,
        "DummyScheduler": "scheduler" in deepspeed,
        "set_seed": True,
    }
    text = rendered(
        "accelerate_loop.py.jinja",
        answer=answer,
        model=answer.model.replace("\\", "/").replace('"', "'"),
        model_name=json.dumps(answer.model),
        start=start_line(answer).replace("\\", "\\\\"),
        sizes=f"{answer.micro_batch_size} x {answer.accumulation}{ranks}",
        model_arguments=_literal({name: value for name, value in setup.model_arguments.items() if value is not None}),
        training_arguments=_literal(without(answer.fields, IN_CONFIG)),
        adapter=_literal(setup.adapter) if setup.adapter else "",
        unused=_unused(answer),
        helpers=[name for name, is_used in helpers.items() if is_used],
        deepspeed=deepspeed,
        is_8_bit="8bit" in optimizer and not optimizer.startswith("adamw_torch"),
        checkpointing=_checkpointing(answer),
    )
    return f"{text}\n"


def _literal(values: Mapping[str, Any]) -> str:
    """A dict in Python, one entry a line."""
    texts = {name: json.dumps(value) if isinstance(value, str) else repr(value) for name, value in values.items()}
    return "{\n" + "".join(f"    {json.dumps(name)}: {text},\n" for name, text in texts.items()) + "}"


def _unused(answer: Answer) -> list[str]:
    rest, setup = without(answer.fields, (*IN_CONFIG, *USED)), answer.setup
    config = answer.fields.get("accelerator_config") or {}
    if isinstance(config, Mapping):
        entries = {name: config.get(name, default) for name, default in OF_ACCELERATOR.items()}
        rest |= {f"accelerator_config {name}": on for name, on in entries.items() if on != OF_ACCELERATOR[name]}
    else:  # a file
        rest |= {"accelerator_config": config}
    lines = [f"# Not done by this loop, as the Trainer would: {name} = {value!r}" for name, value in rest.items()]
    collating = {name: value for name, value in setup.data_arguments.items() if value}
    lines += [f"# your_collator must do it: {name} = {value!r}" for name, value in collating.items()]
    lines += ["import torch", *switch_lines(setup.switches)] if setup.switches else []
    return [" ".join(line.split()) for line in lines]


def _checkpointing(answer: Answer) -> str:
    """The call of this transformers; switched off too, because a model's config can switch it on."""
    method = next((name for name in CHECKPOINTING if name in answer.setup.training_arguments), CHECKPOINTING[1])
    if not answer.checkpointing:
        return f"{method}_disable()"
    kwargs = answer.checkpointing_kwargs
    own = [f"{name}={kwargs.pop(name)!r}" for name in ("every_n_layers", "offload") if name in kwargs]
    return f"{method}_enable({', '.join(([f'{method}_kwargs={kwargs!r}'] if kwargs else []) + own)})"
