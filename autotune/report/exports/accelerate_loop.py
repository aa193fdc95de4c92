"""The answer as a plain training loop on accelerate: a script to paste, complete but for the model and the data."""

import json
from collections.abc import Mapping
from string import Template
from typing import Any

from autotune.report.exports.accelerate_config import start_line
from autotune.report.exports.answer import CHECKPOINTING, Answer

LAUNCHED = ("deepspeed", "fsdp", "fsdp_config")
"""What accelerate_config.yaml says: the loop must not say it again."""

USED = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("optim", "optim_args", "optim_target_modules", "learning_rate", "weight_decay", "max_grad_norm"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("warmup_ratio", "max_steps", "num_train_epochs", "seed", "bf16", "fp16", "tf32", "use_cpu"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_drop_last"),
    *("dataloader_persistent_workers", "accelerator_config", "use_liger_kernel", "liger_kernel_config"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *CHECKPOINTING,
    *(f"{name}_kwargs" for name in CHECKPOINTING),
)
"""Fields that the loop acts on; TrainingArguments itself acts on TF32 and compilation."""

SCRIPT = Template('''\
"""A plain training loop: the configuration that autotune found for $model.

    $start

Fill in your_model, your_dataset and your_collator; all else is the answer. A step is $sizes = $global_batch_size samples.
The loss of a step is the mean over its micro-batches, each weighing the same; the Trainer weighs tokens.
"""

import math

from accelerate import Accelerator
from accelerate.utils import $helpers
from torch.utils.data import DataLoader
from transformers import ${loader}Trainer, TrainingArguments, default_data_collator, get_scheduler

RANKS = $ranks
MODEL_ARGUMENTS = $model_arguments
TRAINING_ARGUMENTS = $training_arguments
$adapter$unused

def your_model():
$own_model


def your_dataset():
    raise NotImplementedError("Return your dataset: each item a dict of what the model takes, labels included.")


your_collator = default_data_collator


def make_optimizer(model, arguments):
$optimizer


def make_loader(arguments):
    workers = arguments.dataloader_num_workers
    return DataLoader(
        your_dataset(),
        batch_size=arguments.per_device_train_batch_size,
        shuffle=True,
        collate_fn=your_collator,
        num_workers=workers,
        pin_memory=arguments.dataloader_pin_memory,
        drop_last=arguments.dataloader_drop_last,
        prefetch_factor=arguments.dataloader_prefetch_factor if workers else None,
        persistent_workers=bool(workers) and arguments.dataloader_persistent_workers,
    )


def train():
    # One source for optimizer, schedule, TF32 and compilation: the same arguments that the Trainer would get.
    arguments = TrainingArguments(output_dir="output", **TRAINING_ARGUMENTS)
    accelerator = Accelerator(
$precision        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        cpu=arguments.use_cpu,$copies
    )
    if accelerator.num_processes != RANKS:
        raise SystemExit(f"{accelerator.num_processes} rank(s) instead of {RANKS}: the batch would not be $global_batch_size.")
    set_seed(arguments.seed)
    model = your_model()
$adapting$checkpointing$liger    loader = make_loader(arguments)
    optimizer = make_optimizer(model, arguments)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    in_epoch = math.ceil(len(loader) / arguments.gradient_accumulation_steps)
    steps = arguments.max_steps if arguments.max_steps > 0 else math.ceil(in_epoch * arguments.num_train_epochs)
$schedule
    model.train()
    done = 0
    while done < steps:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients and arguments.max_grad_norm:
                    accelerator.clip_grad_norm_(model.parameters(), arguments.max_grad_norm)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                    done += 1
                optimizer.zero_grad()
            if done == steps:
                break
    accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    train()
''')

OPTIMIZER = """\
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    learning = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for _, weight in learning if weight.ndim > 1], "weight_decay": arguments.weight_decay},
        {"params": [weight for _, weight in learning if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    for own in ("params", "model", "optimizer_dict"):  # optimizers that choose their parameters themselves
        groups = options.pop(own, groups)
    return kind(groups, **options)"""

EMBEDDINGS = """\
    optimizer = kind(groups, **options)
    # As the Trainer does: embeddings keep their states in 32 bits.
    from bitsandbytes.optim import GlobalOptimManager
    from torch.nn import Embedding

    for module in model.modules():
        if isinstance(module, Embedding):
            GlobalOptimManager.get_instance().register_module_override(module, "weight", {"optim_bits": 32})
    return optimizer"""

DEEPSPEED_OPTIMIZER = (
    "    return DummyOptim(model.parameters(), lr=arguments.learning_rate)  # ds_config.json names the real one"
)

SCHEDULE = """\
    warmup = arguments.get_warmup_steps(steps)
    kwargs = arguments.lr_scheduler_kwargs or {}
    scheduler = get_scheduler(
        arguments.lr_scheduler_type, optimizer, warmup, steps, scheduler_specific_kwargs=kwargs
    )"""

DEEPSPEED_SCHEDULE = """\
    warmup = max(1, arguments.get_warmup_steps(steps))
    # ds_config.json names the real one.
    scheduler = accelerator.prepare(DummyScheduler(optimizer, total_num_steps=steps, warmup_num_steps=warmup))"""

LIGER = """\
    from transformers.integrations.liger import apply_liger_kernel

    apply_liger_kernel(model, arguments.liger_kernel_config)
"""


ADAPTING = """\
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(**ADAPTER))
"""


def accelerate_loop(answer: Answer) -> str:
    """The text of accelerate_loop.py; what the loop does not do stands in it as a comment."""
    config = answer.deepspeed or {}
    return SCRIPT.substitute(
        model=answer.model.replace("\\", "/").replace('"', "'"),
        start=start_line(answer).replace("\\", "\\\\"),
        sizes=_sizes(answer),
        global_batch_size=answer.global_batch_size,
        loader=f"{answer.auto_class}, " if answer.auto_class else "",
        own_model=_model(answer),
        ranks=answer.data_parallel_size,
        model_arguments=_literal({name: value for name, value in answer.model_arguments.items() if value is not None}),
        adapter=f"ADAPTER = {_literal(answer.adapter)}\n" if answer.adapter else "",
        adapting=ADAPTING if answer.adapter else "",
        training_arguments=_literal(answer.without(LAUNCHED)),
        unused=_unused(answer),
        helpers=_helpers(answer, config),
        optimizer=_optimizer(answer, config),
        precision="" if answer.deepspeed_file else f'        mixed_precision="{answer.mixed_precision}",\n',
        copies=_copies(answer),
        checkpointing=_checkpointing(answer),
        liger=LIGER if answer.fields.get("use_liger_kernel") else "",
        schedule=DEEPSPEED_SCHEDULE if "scheduler" in config else SCHEDULE,
    )


def _model(answer: Answer) -> str:
    """What your_model does: a model that no name loads is for the reader to make."""
    if answer.auto_class:
        return f"    return {answer.auto_class}.from_pretrained({json.dumps(answer.model)}, **MODEL_ARGUMENTS)"
    return '    raise NotImplementedError("Return your model, as MODEL_ARGUMENTS say.")'


def _sizes(answer: Answer) -> str:
    ranks = f" x {answer.data_parallel_size} ranks" if answer.data_parallel_size > 1 else ""
    return f"{answer.micro_batch_size} x {answer.accumulation}{ranks}"


def _literal(values: Mapping[str, Any]) -> str:
    """A dict as one would write it, one entry a line."""
    return "{\n" + "".join(f"    {json.dumps(name)}: {_word(value)},\n" for name, value in values.items()) + "}"


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _unused(answer: Answer) -> str:
    left = answer.without((*LAUNCHED, *USED))
    lines = [f"# Not done by this loop, as the Trainer would: {name} = {value!r}" for name, value in left.items()]
    collating = {name: value for name, value in answer.data_arguments.items() if value}
    lines += [f"# your_collator must do it: {name} = {value!r}" for name, value in collating.items()]
    lines += ["import torch", *answer.switch_lines] if answer.switches else []
    return "".join(f"{' '.join(line.split())}\n" for line in lines)


def _helpers(answer: Answer, config: dict[str, Any]) -> str:
    """What the script imports from accelerate.utils."""
    names = {"optimizer": "DummyOptim", "scheduler": "DummyScheduler"}
    used = [word for key, word in names.items() if key in config]
    used += ["DataLoaderConfiguration"] if _copies(answer) else []
    return ", ".join([*sorted(used), "set_seed"])


def _optimizer(answer: Answer, config: dict[str, Any]) -> str:
    if "optimizer" in config:
        return DEEPSPEED_OPTIMIZER
    name = str(answer.fields.get("optim", ""))
    if "8bit" in name and not name.startswith("adamw_torch"):
        return OPTIMIZER.replace("    return kind(groups, **options)", EMBEDDINGS)
    return OPTIMIZER


def _copies(answer: Answer) -> str:
    config = answer.fields.get("accelerator_config")
    blocking = not (isinstance(config, Mapping) and config.get("non_blocking"))
    return "" if blocking else "\n        dataloader_config=DataLoaderConfiguration(non_blocking=True),"


def _checkpointing(answer: Answer) -> str:
    """The call of this transformers; off is said too, because a model's config can switch it on."""
    word = next((name for name in CHECKPOINTING if name in answer.training_arguments), CHECKPOINTING[1])
    if not answer.checkpointing:
        return f"    model.{word}_disable()\n"
    kwargs = answer.checkpointing_kwargs
    own = [f"{name}={kwargs.pop(name)!r}" for name in ("every_n_layers", "offload") if name in kwargs]
    told = [f"{word}_kwargs={kwargs!r}"] if kwargs else []
    return f"    model.{word}_enable({', '.join(told + own)})\n"
