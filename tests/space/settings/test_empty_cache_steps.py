"""Emptying the cache."""

from types import SimpleNamespace

import pytest

from autotune.core.configuration import Configuration
from autotune.space.settings import Context
from autotune.space.settings.empty_cache_steps import SETTING
from autotune.space.setup import training_arguments
from tests.makers import FIELDS, cpu, gpu, workload
from tests.space.settings.fakes import observed

CARD = gpu(training_argument_fields=(*FIELDS, "torch_empty_cache_steps"))


def test_the_user_s_own_is_none_unless_they_say_how_often() -> None:
    assert SETTING.from_user(Context(gpu(), workload())) == "none"
    assert SETTING.from_user(Context(gpu(), workload(), {"torch_empty_cache_steps": 4})) == 4


def test_none_takes_the_user_s_own_back_and_stands_in_the_answer() -> None:
    asked = Configuration(2, 1, settings=(("empty_cache_steps", "none"),))
    fields = training_arguments(asked, CARD, {"torch_empty_cache_steps": 4})
    assert fields["torch_empty_cache_steps"] is None
    assert training_arguments(Configuration(2, 1, settings=(("empty_cache_steps", 16),)), CARD, {})[
        "torch_empty_cache_steps"
    ] == 16  # fmt: skip


@pytest.mark.parametrize(("steps", "value"), [(None, "none"), (4, 4)])
def test_it_is_read_back_from_the_trainer_s_arguments(steps: int | None, value: object) -> None:
    shown = observed()
    shown.trainer.args = SimpleNamespace(torch_empty_cache_steps=steps)
    assert SETTING.read_back(shown) == value


def test_a_cpu_has_no_cache_and_an_old_transformers_no_field() -> None:
    assert "no cache" in (SETTING.unavailable(4, Context(cpu(), workload())) or "")
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert "no field" in (SETTING.unavailable(4, Context(gpu(), workload())) or "")
    assert SETTING.unavailable(4, Context(CARD, workload())) is None


def test_a_probe_times_as_many_steps_as_lie_between_two_emptyings() -> None:
    assert [SETTING.period(value) for value in SETTING.values] == [1, 1, 4, 16]
