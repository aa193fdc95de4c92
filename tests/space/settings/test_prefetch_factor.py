"""Prefetch factor."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.prefetch_factor import SETTING
from autotune.space.setup import training_arguments
from tests.makers import configuration, cpu, workload
from tests.space.settings.fakes import observed


def test_it_is_two_where_nobody_says_otherwise() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == 2
    assert SETTING.from_user(Context(cpu(), workload(), {"dataloader_prefetch_factor": None})) == 2
    assert SETTING.from_user(Context(cpu(), workload(), {"dataloader_prefetch_factor": 8})) == 8
    with pytest.raises(ValueError, match="whole number"):
        SETTING.from_user(Context(cpu(), workload(), {"dataloader_prefetch_factor": 0}))


def test_it_is_applied_with_workers_and_left_out_without() -> None:
    with_workers, without = (
        training_arguments(configuration(8, workers=workers, prefetch_factor=4), cpu(), {}) for workers in (2, 0)
    )
    assert with_workers["dataloader_prefetch_factor"] == 4
    assert "dataloader_prefetch_factor" not in without, "the Trainer would refuse it"


def test_it_is_read_back_from_the_loader_and_unseen_without_workers() -> None:
    assert SETTING.read_back(observed(loader=SimpleNamespace(prefetch_factor=4))) == 4
    assert SETTING.read_back(observed(loader=SimpleNamespace(prefetch_factor=None))) is None
    assert SETTING.read_back(observed(loader=SimpleNamespace())) is None


def test_it_means_something_with_workers_only() -> None:
    assert SETTING.active_if is not None
    setting, means = SETTING.active_if
    assert setting == "workers"
    assert (means(0), means(1)) == (False, True)
