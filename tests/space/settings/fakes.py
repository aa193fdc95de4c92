"""A running training as a setting reads it back, without one."""

from types import SimpleNamespace
from typing import Any

from autotune.space.settings import Observed


def observed(**facts: Any) -> Observed:
    """loader, model, optimizer, collator, accelerator, optim, train_batch_size, arguments: of the Trainer.

    Others: of the first micro-step.
    """
    loader = facts.pop("loader", SimpleNamespace(pin_memory=False, num_workers=0, total_batch_size=8))
    trainer = SimpleNamespace(
        callback_handler=SimpleNamespace(train_dataloader=loader),
        model=facts.pop("model", None),
        optimizer=facts.pop("optimizer", None),
        data_collator=facts.pop("collator", None),
        accelerator=facts.pop("accelerator", None),
        args=SimpleNamespace(
            optim=facts.pop("optim", ""),
            train_batch_size=facts.pop("train_batch_size", 8),
            **facts.pop("arguments", {}),
        ),
    )
    return Observed(**{"trainer": trainer, "linear_dtype": "float32", "autocast": False, "tf32": False, **facts})


class DeepSpeedEngine:
    """As much of DeepSpeed's engine as is read: the config that it was made with."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
