"""Persistent workers."""

from types import SimpleNamespace

from autotune.space.settings import Context
from autotune.space.settings.persistent_workers import SETTING
from autotune.space.setup import training_arguments
from tests.makers import configuration, cpu, workload
from tests.space.settings.fakes import observed


def test_they_end_with_an_epoch_where_nobody_says_otherwise() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) is False
    assert SETTING.from_user(Context(cpu(), workload(), {"dataloader_persistent_workers": True})) is True


def test_they_are_applied_with_workers_and_left_out_without() -> None:
    with_workers, without = (
        training_arguments(configuration(8, workers=workers, persistent_workers=True), cpu(), {}) for workers in (2, 0)
    )
    assert with_workers["dataloader_persistent_workers"] is True
    assert "dataloader_persistent_workers" not in without


def test_they_are_read_back_from_the_loader_and_unseen_without_workers() -> None:
    loader = SimpleNamespace(num_workers=2, persistent_workers=True)
    assert SETTING.read_back(observed(loader=loader)) is True
    assert SETTING.read_back(observed(loader=SimpleNamespace(num_workers=0, persistent_workers=False))) is None


def test_they_mean_something_with_workers_only() -> None:
    assert SETTING.active_if is not None
    assert (SETTING.active_if[0], SETTING.active_if[1](0), SETTING.active_if[1](2)) == ("workers", False, True)
