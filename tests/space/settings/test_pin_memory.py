"""Pinned memory."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.pin_memory import SETTING
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("False", False), ("0", False), (True, True)])
def test_it_is_read_as_people_write_it(text: object, value: bool) -> None:
    assert SETTING.read(text) is value


def test_it_is_on_by_default_on_a_card_and_never_on_a_cpu() -> None:
    assert SETTING.from_user(Context(gpu(), workload())) is True
    assert SETTING.from_user(Context(gpu(), workload(), {"dataloader_pin_memory": False})) is False
    assert SETTING.from_user(Context(cpu(), workload(), {"dataloader_pin_memory": True})) is False


def test_it_is_applied_and_read_back_from_the_loader() -> None:
    assert SETTING.apply(True, gpu()).training_arguments == {"dataloader_pin_memory": True}
    assert SETTING.read_back(observed(loader=SimpleNamespace(pin_memory=True))) is True


def test_it_is_unavailable_on_a_cpu() -> None:
    assert "CPU" in (SETTING.unavailable(True, Context(cpu(), workload())) or "")
    assert SETTING.unavailable(False, Context(cpu(), workload())) is None
    assert SETTING.unavailable(True, Context(gpu(), workload())) is None
