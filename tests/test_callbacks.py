"""Which callbacks go from one Trainer to another."""

from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback

from autotune.callbacks import add_callbacks, drop_trackers, is_tracker
from tests.trainers import Counting, Logged, Scaled, Told, built


def kinds(trainer: Any) -> list[type]:
    return [type(one) for one in trainer.callback_handler.callbacks]


def test_a_callback_that_the_class_adds_is_there_once(tmp_path: Path) -> None:
    trainer = built(tmp_path, Scaled)
    mine = Counting()
    add_callbacks(trainer, [Told(trainer), mine])
    assert kinds(trainer).count(Told) == 1
    assert trainer.callback_handler.callbacks[-1] is mine


def test_trackers_are_taken_off_and_nothing_else(tmp_path: Path) -> None:
    trainer = built(tmp_path, Logged, callbacks=[Counting()])
    before = kinds(trainer)
    assert TensorBoardCallback in before
    drop_trackers(trainer)
    assert kinds(trainer) == [one for one in before if one is not TensorBoardCallback]
    assert not any(map(is_tracker, trainer.callback_handler.callbacks))
