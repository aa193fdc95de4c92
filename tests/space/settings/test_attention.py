"""Attention."""

from types import SimpleNamespace

import pytest

from autotune.space.settings import Context
from autotune.space.settings.attention import NAMES, SETTING
from autotune.space.settings.precision import VALUES as PRECISIONS
from tests.makers import cpu, gpu, workload
from tests.space.settings.fakes import observed

ALL = workload(attention="sdpa", attentions=dict.fromkeys(NAMES))


def test_the_user_s_own_is_the_model_s() -> None:
    assert SETTING.from_user(Context(cpu(), workload(attention="eager"))) == "eager"


def test_it_is_an_argument_of_the_model() -> None:
    settings = SETTING.apply("sdpa", cpu())
    assert settings.model_arguments == {"attn_implementation": "sdpa"}
    assert settings.training_arguments == {}


def test_it_is_read_back_from_the_model_s_config() -> None:
    model = SimpleNamespace(config=SimpleNamespace(_attn_implementation="eager"))
    assert SETTING.read_back(observed(model=model)) == "eager"
    assert SETTING.read_back(observed(model=SimpleNamespace(config=SimpleNamespace()))) is None


def test_what_the_model_or_the_installation_cannot_do_is_unavailable_with_its_reason() -> None:
    limited = workload(attention="sdpa", attentions={"eager": None, "flash_attention_2": "flash-attn is not installed"})
    assert SETTING.unavailable("sdpa", Context(gpu(), limited)) is None
    assert SETTING.unavailable("eager", Context(gpu(), limited)) is None
    assert SETTING.unavailable("flash_attention_2", Context(gpu(), limited)) == "flash-attn is not installed"
    assert "not asked" in (SETTING.unavailable("flex_attention", Context(gpu(), limited)) or "")


@pytest.mark.parametrize(
    ("value", "capability", "runs"),
    [
        ("flash_attention_2", (7, 5), False),
        ("flash_attention_2", (8, 0), True),
        ("flash_attention_3", (8, 9), False),
        ("flash_attention_3", (9, 0), True),
        ("flex_attention", (7, 0), True),
    ],
)
def test_flash_attention_needs_a_card_that_it_was_written_for(
    value: str, capability: tuple[int, int], runs: bool
) -> None:
    assert (SETTING.unavailable(value, Context(gpu(compute_capability=capability), ALL)) is None) == runs


@pytest.mark.parametrize("value", ["flash_attention_2", "flex_attention"])
def test_on_a_cpu_only_eager_and_sdpa_train(value: str) -> None:
    assert "GPU" in (SETTING.unavailable(value, Context(cpu(), ALL)) or "")
    assert SETTING.unavailable("eager", Context(cpu(), ALL)) is None


def test_a_callers_own_model_keeps_its_attention() -> None:
    own = workload(attention="sdpa", attentions=dict.fromkeys(NAMES), user_objects=True)
    assert "model_init" in (SETTING.unavailable("eager", Context(gpu(), own)) or "")
    assert SETTING.unavailable("sdpa", Context(gpu(), own)) is None


@pytest.mark.parametrize("value", NAMES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_flash_attention_takes_numbers_of_16_bits_only(value: str, precision: str) -> None:
    why = SETTING.forbidden["precision"](value, precision) or ""
    assert ("16 bits" in why) == (value.startswith("flash") and precision in ("fp32", "tf32"))
