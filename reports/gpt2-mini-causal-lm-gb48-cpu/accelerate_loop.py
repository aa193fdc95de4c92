"""A plain training loop: the configuration that autotune found for gpt2-mini.

    OMP_NUM_THREADS=2 accelerate launch --config_file accelerate_config.yaml accelerate_loop.py

Fill in your_model, your_dataset and your_collator; all else is the answer. A step is 8 x 6 = 48 samples.
The loss of a step is the mean over its micro-batches, each weighing the same; the Trainer weighs tokens.
"""

import math

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator, get_scheduler

RANKS = 1
MODEL_ARGUMENTS = {
    "dtype": "float32",
}
TRAINING_ARGUMENTS = {
    "gradient_accumulation_steps": 6,
    "per_device_train_batch_size": 8,
    "activation_checkpointing": False,
    "fp16": False,
    "bf16": True,
    "optim": "adamw_torch",
    "dataloader_num_workers": 4,
    "dataloader_pin_memory": False,
    "use_cpu": True,
}


def your_model():
    raise NotImplementedError("Return your model, as MODEL_ARGUMENTS say.")


def your_dataset():
    raise NotImplementedError("Return your dataset: each item a dict of what the model takes, labels included.")


your_collator = default_data_collator


def make_optimizer(model, arguments):
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    learning = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for _, weight in learning if weight.ndim > 1], "weight_decay": arguments.weight_decay},
        {"params": [weight for _, weight in learning if weight.ndim <= 1], "weight_decay": 0.0},
    ]
    for own in ("params", "model", "optimizer_dict"):  # optimizers that choose their parameters themselves
        groups = options.pop(own, groups)
    return kind(groups, **options)


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
        mixed_precision="bf16",
        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        cpu=arguments.use_cpu,
    )
    if accelerator.num_processes != RANKS:
        raise SystemExit(f"{accelerator.num_processes} rank(s) instead of {RANKS}: the batch would not be 48.")
    set_seed(arguments.seed)
    model = your_model()
    model.activation_checkpointing_disable()
    loader = make_loader(arguments)
    optimizer = make_optimizer(model, arguments)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    in_epoch = math.ceil(len(loader) / arguments.gradient_accumulation_steps)
    steps = arguments.max_steps if arguments.max_steps > 0 else math.ceil(in_epoch * arguments.num_train_epochs)
    warmup = arguments.get_warmup_steps(steps)
    kwargs = arguments.lr_scheduler_kwargs or {}
    scheduler = get_scheduler(
        arguments.lr_scheduler_type, optimizer, warmup, steps, scheduler_specific_kwargs=kwargs
    )
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
