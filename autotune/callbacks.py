"""Callbacks go from one Trainer to another, but for those that the other one made by itself."""

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
