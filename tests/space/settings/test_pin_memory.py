"""Pinned memory."""

from types import SimpleNamespace

import pytest

from autotune.space.settings.pin_memory import LEVER
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("False", False), ("0", False), (True, True)])
def test_it_is_read_as_people_write_it(text: object, value: bool) -> None:
    assert LEVER.read(text) is value


def test_it_is_on_by_default_on_a_card_and_never_on_a_cpu() -> None:
    assert LEVER.own({}, gpu(), workload()) is True
    assert LEVER.own({"dataloader_pin_memory": False}, gpu(), workload()) is False
    assert LEVER.own({"dataloader_pin_memory": True}, cpu(), workload()) is False


def test_it_is_applied_and_read_back_from_the_loader() -> None:
    assert LEVER.apply(True, gpu()).training_arguments == {"dataloader_pin_memory": True}
    assert LEVER.read_back(observed(loader=SimpleNamespace(pin_memory=True))) is True


def test_it_is_unavailable_on_a_cpu() -> None:
    assert "CPU" in (LEVER.unavailable(True, cpu(), workload()) or "")
    assert LEVER.unavailable(False, cpu(), workload()) is None
    assert LEVER.unavailable(True, gpu(), workload()) is None
