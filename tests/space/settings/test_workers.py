"""Data loader workers."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.workers import SETTING
from tests.makers import cpu, workload
from tests.space.settings.fakes import observed


def test_they_are_applied_and_read_from_the_user_s_arguments() -> None:
    assert SETTING.apply(2, cpu()).training_arguments == {"dataloader_num_workers": 2}
    assert SETTING.from_user(Context(cpu(), workload(), {"dataloader_num_workers": 3})) == 3
    assert SETTING.from_user(Context(cpu(), workload())) == 0
    with pytest.raises(ValueError, match="whole number"):
        SETTING.from_user(Context(cpu(), workload(), {"dataloader_num_workers": "many"}))


def test_they_are_read_back_from_the_loader() -> None:
    assert SETTING.read_back(observed(loader=SimpleNamespace(num_workers=4))) == 4


def test_more_than_the_cores_are_unavailable_but_four_are_worth_a_probe_anywhere() -> None:
    assert SETTING.unavailable(4, Context(cpu(cpu_count=2), workload())) is None
    assert "2 CPU cores" in (SETTING.unavailable(5, Context(cpu(cpu_count=2), workload())) or "")
    assert SETTING.unavailable(8, Context(cpu(cpu_count=8), workload())) is None
