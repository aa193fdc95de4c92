"""Built Trainers of a tiny model, as users have them."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

CHECKPOINTING = (
    "activation_checkpointing" if hasattr(TrainingArguments, "activation_checkpointing") else "gradient_checkpointing"
)
"""The field of training arguments, as the installed transformers calls it."""


def installed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Training arguments under the names of the installed transformers, whichever version they were recorded with."""
    return {name.replace("activation_checkpointing", CHECKPOINTING): value for name, value in fields.items()}


class Numbers(torch.utils.data.Dataset):
    """So many samples of eight tokens in so many classes."""

    def __init__(self, samples: int = 64, classes: int = 2) -> None:
        self.samples, self.classes = samples, classes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        if not 0 <= place < self.samples:
            raise IndexError(place)
        return {"input_ids": torch.arange(8) + place % 50, "labels": torch.tensor(place % self.classes)}


class Counting(TrainerCallback):
    """Counts steps, and prints each."""

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1
        print("counted", self.steps)


class Keeping(TrainerCallback):
    """Writes into a folder of its user's, removes old checkpoints there, and says that it could."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, model: torch.nn.Module) -> None:
        """What an earlier run left."""
        (self.folder / "checkpoint-1").mkdir(parents=True)
        (self.folder / "checkpoint-1" / "state").write_text("old")
        (self.folder / "done").write_text("10000")
        model.save_pretrained(self.folder / "best_model")
        torch.save(model.state_dict(), self.folder / "weights.pt")

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        try:
            shutil.rmtree(self.folder / "checkpoint-1")
            (self.folder / "done").write_text(str(state.global_step))
            model.save_pretrained(self.folder / "best_model")
            torch.save(model.state_dict(), self.folder / "weights.pt")
        except Exception as error:
            print("not kept:", error)
        else:
            print("kept")


class Scaled(Trainer):
    """A Trainer with an argument of its own, which it keeps, and a callback of its own making."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale
        self.add_callback(Told(self))

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return (self.scale * loss[0], *loss[1:]) if isinstance(loss, tuple) else self.scale * loss


class Numb(Trainer):
    """A Trainer that learns nothing in bf16, and is fast at that."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        if self.args.bf16:
            return 0.0 * loss + loss.detach()
        time.sleep(0.05)
        return loss


class Logged(Trainer):
    """A Trainer that logs whatever its arguments say."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(TensorBoardCallback())


@dataclass
class Keyed(TrainingArguments):
    """Arguments with a secret of their own."""

    api_key: str = ""


class Told(TrainerCallback):
    """Holds its Trainer."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer


def bert() -> Any:
    return BertForSequenceClassification(
        BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    )


def built(
    folder: Path, kind: type = Trainer, model: Any = None, fields: dict[str, Any] | None = None, **parts: Any
) -> Any:
    """A Trainer of 4 x 2 samples a step on the CPU; fields: more of its arguments, parts: of its constructor."""
    known = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "report_to": "none", "use_cpu": True}
    args = TrainingArguments(output_dir=str(folder), **{**known, "save_strategy": "no", **(fields or {})})
    return kind(**{"model": model or bert(), "args": args, "train_dataset": Numbers(), **parts})
