"""The micro-batch size."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.micro_batch_size import SETTING, divisors
from tests.makers import cpu, workload
from tests.space.settings.fakes import observed


def test_divisors_are_all_and_ascending() -> None:
    assert divisors(48) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert divisors(49) == (1, 7, 49)
    assert divisors(1) == (1,)
    for number in range(1, 300):
        assert divisors(number) == tuple(size for size in range(1, number + 1) if number % size == 0)


def test_divisors_can_be_multiples_only() -> None:
    assert divisors(48, 8) == (8, 16, 24, 48)
    assert divisors(48, 7) == ()


@pytest.mark.parametrize("text", ["0", "-4", 0, True, 1.5, "8.0"])
def test_it_is_a_whole_number_from_one(text: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        SETTING.read(text)


def test_it_is_applied_and_read_back_from_the_loader() -> None:
    assert SETTING.apply(4, cpu()).training_arguments == {"per_device_train_batch_size": 4}
    assert SETTING.from_user(Context(cpu(), workload(), {"per_device_train_batch_size": 4})) == 4
    assert SETTING.read_back(observed(loader=SimpleNamespace(total_batch_size=16))) == 16
    assert SETTING.read_back(observed(loader=SimpleNamespace(), train_batch_size=6)) == 6


def test_of_a_trainer_that_generates_it_is_a_part_of_the_loader_s_batch() -> None:
    for loader in (SimpleNamespace(total_batch_size=16), SimpleNamespace(batch_size=16)):
        assert SETTING.read_back(observed(loader=loader, arguments={"steps_per_generation": 4})) == 4


def test_larger_is_hungrier() -> None:
    assert SETTING.needs_at_least_as_much(8, 4)
    assert not SETTING.needs_at_least_as_much(4, 8)
