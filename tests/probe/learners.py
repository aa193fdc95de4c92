"""A caller's own objects for the numerics check: a model that learns, and a Trainer that tells what it was shown."""

import os
from typing import Any

import torch
from transformers import Trainer

from tests.probe.misbehaviours import behaviour, tell


class Points(torch.utils.data.Dataset):
    """So many samples of eight numbers, whose first is the sample's place, with a sum to learn."""

    def __init__(self, samples: int = 1000) -> None:
        self._numbers = torch.randn(samples, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"x": self._numbers[place], "place": torch.tensor(place), "labels": self._numbers[place].sum()}


class Learner(torch.nn.Module):
    """Two layers without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 32), torch.nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.second(torch.tanh(self.first(x))).squeeze(-1) - labels).square().mean()}


class Telling(Trainer):
    """Tells which samples each micro-step saw and the learning rate; misbehaves in the named step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_signature_columns_if_needed()
        self._signature_columns.append("place")
        self._told: list[Any] = []

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._told.append([self.state.global_step, inputs.pop("place").tolist(), self._get_learning_rate()])
        return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        step, at = self.state.global_step, int(os.environ.get("BEHAVIOUR_TEXT") or -1)
        if behaviour() == "nan" and step == at:
            return loss * float("nan")
        if behaviour() == "skip":  # as the scaler of fp16 leaves the wrapped optimizer behind
            self.accelerator._optimizers[0]._is_overflow = step < at
        if behaviour() == "stop" and step == at:
            self.control.should_training_stop = True
        return loss

    def train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train(*args, **kwargs)
        tell("told", self._told)
        return result


OBJECTS: dict[str, Any] = {"model_init": Learner, "train_dataset": Points(), "trainer_class": Telling}
