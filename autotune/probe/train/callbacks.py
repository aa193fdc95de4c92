"""Callbacks that go from one Trainer to another; into probes no tracker goes."""

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


def take_callbacks(trainer: Any, source: Any) -> None:
    """Give a Trainer the callbacks of another one of its class, in their order: none that was removed from that one comes back.

    What the Trainer made by itself stays its own, one for each of that class: it may hold the Trainer.
    """
    made = list(trainer.callback_handler.callbacks)
    callbacks = []
    for callback in source.callback_handler.callbacks:
        match = next((other for other in made if type(other) is type(callback)), None)
        if match is not None:
            made.remove(match)
        callbacks.append(callback if match is None else match)
    trainer.callback_handler.callbacks = callbacks


def is_tracker(callback: Any) -> bool:
    """Whether it logs to a tracker (W&B, MLflow, TensorBoard, ...): one of transformers' own, or what inherits it."""
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    return isinstance(callback, tuple(INTEGRATION_TO_CALLBACK.values()))


def drop_trackers(trainer: Any) -> None:
    """Take them off a Trainer whose class adds them by itself."""
    for one in filter(is_tracker, tuple(trainer.callback_handler.callbacks)):
        trainer.remove_callback(one)
