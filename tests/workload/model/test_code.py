"""Code that decides what is trained: what makes more weights learn in the course of a training is found."""

import types
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from autotune.workload.model.code import grows


def thaw(model: Any) -> None:
    for weight in model.parameters():
        weight.requires_grad = True


def by_name(model: Any) -> None:
    setattr(model.head, "requires_grad", True)  # noqa: B010


class Thaws(TrainerCallback):
    def on_step_begin(self, *_: Any, model: Any = None, **__: Any) -> None:
        thaw(model)


class AddsGroup(Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizer.add_param_group({"params": []})
        return super().training_step(*args, **kwargs)


class Counts(TrainerCallback):
    def on_log(self, *_: Any, model: Any = None, **__: Any) -> None:
        print(sum(weight.numel() for weight in model.parameters() if weight.requires_grad))


class Freezes(TrainerCallback):
    def __init__(self, model: Any = None) -> None:
        model.requires_grad_(False)


@pytest.mark.parametrize(
    ("part", "found"),
    [
        (Thaws, "thaw uses requires_grad"),
        (by_name, "by_name uses requires_grad"),
        (AddsGroup, "AddsGroup.training_step uses add_param_group"),
        (lambda model: model.unfreeze(), "<lambda> uses unfreeze"),
        (Counts, ""),
        (Freezes, ""),
        (Trainer, ""),
        (torch.nn.Linear, ""),
        (types.SimpleNamespace, ""),
        (None, ""),
    ],
)
def test_what_makes_more_weights_learn_is_found_by_name(part: Any, found: str) -> None:
    assert grows([part]) == found
