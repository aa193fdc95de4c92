"""Experts."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.experts import NAMES, SETTING
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed

MIXED = workload(architecture="Qwen2MoeForCausalLM", expert="grouped_mm", experts=dict.fromkeys(NAMES))


class Mixed:
    """A model that lets its experts be chosen."""

    config = SimpleNamespace(_experts_implementation="eager")

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True


def test_the_user_s_own_is_the_model_s_and_none_without_experts() -> None:
    assert SETTING.from_user(Context(cpu(), MIXED)) == "grouped_mm"
    assert SETTING.from_user(Context(cpu(), workload())) == "none"


def test_it_is_an_argument_of_the_model() -> None:
    assert SETTING.apply("batched_mm", cpu()).model_arguments == {"experts_implementation": "batched_mm"}
    assert SETTING.apply("none", cpu()).model_arguments == {}


def test_it_is_read_back_from_the_model_s_config() -> None:
    assert SETTING.read_back(observed(model=Mixed())) == "eager"
    wrapped = SimpleNamespace(get_base_model=Mixed)
    assert SETTING.read_back(observed(model=wrapped)) == "eager"
    assert SETTING.read_back(observed(model=SimpleNamespace(config=Mixed.config))) is None, "it has none to choose for"


def test_a_model_without_experts_has_nothing_to_choose() -> None:
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    for name in NAMES:
        assert "has no experts" in (SETTING.unavailable(name, Context(gpu(), workload())) or "")


def test_what_the_model_cannot_do_is_unavailable_with_its_reason() -> None:
    limited = workload(expert="eager", experts={"eager": None, "grouped_mm": "cannot dispatch"})
    assert SETTING.unavailable("eager", Context(gpu(), limited)) is None
    assert SETTING.unavailable("grouped_mm", Context(gpu(), limited)) == "cannot dispatch"
    assert "not asked" in (SETTING.unavailable("batched_mm", Context(gpu(), limited)) or "")


@pytest.mark.parametrize("value", ["deepgemm", "sonicmoe"])
def test_what_fetches_its_kernels_from_the_hub_while_it_trains_is_no_value(value: str) -> None:
    with pytest.raises(ValueError, match="is none of"):
        SETTING.read(value)


def test_a_callers_own_model_keeps_its_experts() -> None:
    own = workload(user_objects=True)
    assert "model_init" in (SETTING.unavailable("eager", Context(gpu(), own)) or "")
    assert SETTING.unavailable("none", Context(gpu(), own)) is None
