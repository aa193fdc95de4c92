"""Which callbacks go from one Trainer to another."""

from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback
from transformers.integrations import TensorBoardCallback

from autotune.probe.train.callbacks import drop_callbacks, is_tracker, take_callbacks
from tests.trainers import Counting, Logged, Scaled, Told, built


def kinds(trainer: Any) -> list[type]:
    return [type(callback) for callback in trainer.callback_handler.callbacks]


def test_what_was_removed_from_one_trainer_does_not_come_back_in_the_other(tmp_path: Path) -> None:
    mine = Counting()
    source = built(tmp_path, Scaled, callbacks=[mine], fields={"report_to": "tensorboard"})
    usual = kinds(source)
    for kind in (TensorBoardCallback, ProgressCallback, PrinterCallback):
        source.remove_callback(kind)
    trainer = built(tmp_path, Scaled, fields={"report_to": "tensorboard"})
    take_callbacks(trainer, source)
    gone = (TensorBoardCallback, ProgressCallback, PrinterCallback)
    assert kinds(trainer) == [kind for kind in usual if kind not in gone]
    assert mine in trainer.callback_handler.callbacks
    told = [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, Told)]
    assert [item.trainer for item in told] == [trainer], "what the class makes by itself holds its own Trainer"
    source.remove_callback(Told)
    take_callbacks(trainer, source)
    assert Told not in kinds(trainer)


class Bar(ProgressCallback):
    """A progress bar of the user's."""


def test_trackers_progress_bars_and_what_failed_are_taken_off_and_nothing_else(tmp_path: Path) -> None:
    trainer = built(tmp_path, Logged, callbacks=[Counting(), Bar(), Told(None)])
    before = kinds(trainer)
    off = [TensorBoardCallback, ProgressCallback, Told]
    assert {*off} <= {*before}
    drop_callbacks(trainer, ["Told"])
    assert kinds(trainer) == [item for item in before if item not in off]
    assert not any(map(is_tracker, trainer.callback_handler.callbacks))
