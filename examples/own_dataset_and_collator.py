"""Your own model, dataset and collator: a function hands them to a `Trainer`, and each trial calls it.

    python examples/own_dataset_and_collator.py

Handwritten digits of scikit-learn, a small network, and a collator that makes a batch of them.
"""

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments

import autotune

pixels, digits = load_digits(return_X_y=True)


class Digits(torch.utils.data.Dataset):
    """1,797 images of 8 x 8 pixels, each with the digit that it shows."""

    def __len__(self):
        return len(digits)

    def __getitem__(self, place):
        return pixels[place], digits[place]


def collate(samples):
    """A list of samples -> the tensors that the model is called with."""
    images = torch.stack([torch.tensor(image, dtype=torch.float32).view(1, 8, 8) / 16 for image, _ in samples])
    return {"pixel_values": images, "labels": torch.tensor([int(digit) for _, digit in samples])}


class Reader(torch.nn.Module):
    """A small network; a model of transformers would do as well. With labels it gives the loss too."""

    def __init__(self):
        super().__init__()
        seen = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        self.layers = torch.nn.Sequential(seen, torch.nn.Flatten(), torch.nn.Linear(256, 10))

    def forward(self, pixel_values, labels):
        logits = self.layers(pixel_values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def build(args):
    """The Trainer of these arguments: every trial builds its own, in a process of its own."""
    return Trainer(model=Reader(), args=args, train_dataset=Digits(), data_collator=collate)


arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=32,
    max_steps=150,
    learning_rate=3e-3,
    remove_unused_columns=False,  # the collator reads samples that are no dictionaries
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
)
# No `if __name__ == "__main__"` is needed: what stands here travels to the trials by value.
result = autotune.tune(
    build,
    arguments,
    n_trials=3,
    timeout="90s",  # for all of it: start, trials and confirmation
    only={"optimizer": ["adamw_torch_fused"], "checkpointing": ["none"], "workers": [0]},  # leave this out to try more
)
print(result.best.configuration, f"{result.best.samples_per_second:.0f} samples/s")

# Train with the answer.
trainer = build(result.arguments(arguments))
trainer.train()

batch = collate([Digits()[place] for place in range(len(digits))])
with torch.no_grad():
    found = trainer.model.cpu().eval()(**batch)["logits"].argmax(dim=-1)
share = (found == batch["labels"]).float().mean().item()
print(f"{share:.0%} of the digits are read")

# 150 steps of exactly 32 samples were taken, and the fast way of training still learns (guessing reads 10 %).
assert trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps == 32
assert trainer.state.global_step == 150
assert share > 0.5
