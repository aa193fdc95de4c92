"""Your own `Trainer`: give it to `tune`, and get one back that does the same, faster.

    python examples/own_trainer.py

A small language model on Python's own documentation, and a Trainer whose loss is not the usual one.
"""

from pydoc_data.topics import topics

import torch
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import autotune

tokenizer = ByT5Tokenizer()  # bytes are its tokens: it needs no files


class Paragraphs(torch.utils.data.Dataset):
    """Paragraphs of the documentation, at most 64 bytes of each."""

    def __init__(self):
        every = [part for topic in topics.values() for part in topic.split("\n\n") if len(part) > 8]
        self.tokens = [tokenizer(part, truncation=True, max_length=64).input_ids for part in every]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, place):
        return {"input_ids": self.tokens[place]}


def collate(samples):
    """Filled up to the longest of the batch; what is filled up does not count in the loss."""
    batch = tokenizer.pad(samples, return_tensors="pt")
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


class LateTokensCount(Trainer):
    """Tokens count the more, the more of the paragraph the model has seen before them."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        losses = torch.nn.functional.cross_entropy(
            outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, reduction="none"
        )
        weights = (labels[:, 1:] != -100) * torch.arange(1, labels.shape[1], device=labels.device)
        loss = (losses * weights).sum() / weights.sum()
        return (loss, outputs) if return_outputs else loss


# A Trainer as you have it already.
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=384, bos_token_id=1, eos_token_id=1, n_positions=64, n_embd=32, n_layer=2, n_head=2)
)
arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    learning_rate=1e-3,
    max_steps=20,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = LateTokensCount(model=model, args=arguments, train_dataset=Paragraphs(), data_collator=collate)

# Its arguments are the baseline; 4 x 4 = 16 samples a step stay 16. The trials run this very class with this very loss.
result = autotune.tune(
    trainer,
    n_trials=3,
    timeout="90s",  # for all of it: start, trials and confirmation
    only={"optimizer": ["adamw_torch_fused"], "checkpointing": ["none"], "workers": [0]},  # leave this out to try more
)
print(result.best.configuration, f"{result.speedup:.2f} times as fast as before")

# A new Trainer with the same model, data, loss and learning rate, and with the answer in its arguments.
faster = result.apply(trainer)
before = [parameter.detach().clone().cpu() for parameter in model.parameters()]
faster.train()

assert type(faster) is LateTokensCount
assert faster.args.per_device_train_batch_size * faster.args.gradient_accumulation_steps == 16
assert faster.args.learning_rate == 1e-3
assert faster.state.global_step == 20
assert any(not torch.equal(old, new.cpu()) for old, new in zip(before, model.parameters(), strict=True))
assert result.speedup.high >= 1  # no slower answer than your own arguments is handed out
assert trainer.args.per_device_train_batch_size == 4  # yours is as it was
