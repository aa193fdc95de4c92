"""Callbacks go from one Trainer to another, but for those that the other one made by itself; into probes no tracker goes."""

from collections import Counter
from collections.abc import Iterable
from typing import Any


def add_callbacks(trainer: Any, callbacks: Iterable[Any]) -> None:
    """Add these, leaving out as many of each class as the Trainer has already."""
    there = Counter(type(one) for one in trainer.callback_handler.callbacks)
    for one in callbacks:
        if there[type(one)]:
            there[type(one)] -= 1
        else:
            trainer.add_callback(one)


def is_tracker(callback: Any) -> bool:
    """Whether it logs to a tracker (W&B, MLflow, TensorBoard, ...): one of transformers' own, or what inherits it."""
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    return isinstance(callback, tuple(INTEGRATION_TO_CALLBACK.values()))


def drop_trackers(trainer: Any) -> None:
    """Take them off a Trainer whose class adds them by itself."""
    for one in filter(is_tracker, tuple(trainer.callback_handler.callbacks)):
        trainer.remove_callback(one)
