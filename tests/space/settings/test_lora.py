"""LoRA."""

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.space.settings import Context
from autotune.space.settings.lora import SETTING
from autotune.space.setup import adapter_arguments
from tests.makers import configuration, cpu, workload
from tests.space.settings.fakes import observed

# PEFT asks by a deprecated name, and says that it turns the weights of a GPT-2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out is set to False:UserWarning"
)

WITH_PEFT = cpu(versions={"peft": "0.21.2"})


def model() -> object:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=32))


def test_without_a_word_all_weights_are_trained() -> None:
    assert SETTING.from_user(Context(cpu(), workload())) == "none"
    assert adapter_arguments(configuration(8, lora="none"), cpu(), "causal-lm") == {}
    assert adapter_arguments(configuration(8), cpu(), "causal-lm") == {}


def test_a_rank_makes_fields_of_peft_s_config() -> None:
    fields = adapter_arguments(configuration(8, lora="16"), cpu(), "causal-lm")
    assert fields == {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    assert LoraConfig(**fields).r == 16
    assert "task_type" not in adapter_arguments(configuration(8, lora="16"), cpu(), "masked-lm")


def test_it_is_read_back_from_what_is_trained() -> None:
    plain = model()
    assert SETTING.read_back(observed(model=plain)) == "none"
    made = get_peft_model(plain, LoraConfig(**adapter_arguments(configuration(8, lora="8"), cpu(), "causal-lm")))
    assert SETTING.read_back(observed(model=made)) == "8"
    made.get_base_model().lm_head.weight.requires_grad = True
    assert SETTING.read_back(observed(model=made)) == "with other weights"


@pytest.mark.parametrize(
    ("facts", "said"),
    [({}, None), ({"user_objects": True}, "model_init"), ({"task": "image-classification"}, "new head")],
)
def test_it_is_unavailable_where_it_could_not_learn(facts: dict[str, object], said: str | None) -> None:
    reason = SETTING.unavailable("8", Context(WITH_PEFT, workload(**facts)))
    assert reason is None if said is None else said in (reason or "")
    assert "pip install peft" in (SETTING.unavailable("8", Context(cpu(), workload(**facts))) or "")
    assert SETTING.unavailable("none", Context(cpu(), workload(**facts))) is None


def test_a_larger_rank_is_hungrier() -> None:
    assert SETTING.needs_at_least_as_much("64", "8")
    assert not SETTING.needs_at_least_as_much("8", "64")
    assert not SETTING.needs_at_least_as_much("none", "8")


def test_an_adapter_spares_the_gradients_of_the_model() -> None:
    assert SETTING.spares_gradients("8")
    assert not SETTING.spares_gradients("none")
