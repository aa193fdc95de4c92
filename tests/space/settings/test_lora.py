"""LoRA."""

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.space.settings.lora import SETTING
from autotune.space.setup import training_setup
from tests.makers import configuration, cpu
from tests.space.settings.fakes import observed

# PEFT asks by a deprecated name, and says that it turns the weights of a GPT-2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out is set to False:UserWarning"
)


def model() -> object:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=32))


def test_a_rank_makes_fields_of_peft_s_config() -> None:
    fields = training_setup(configuration(8, lora="16"), cpu(), {}, "causal-lm").adapter
    assert fields == {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    assert LoraConfig(**fields).r == 16
    assert "task_type" not in training_setup(configuration(8, lora="16"), cpu(), {}, "masked-lm").adapter


def test_it_is_read_back_from_what_is_trained() -> None:
    plain = model()
    assert SETTING.read_back(observed(model=plain)) == "none"
    made = get_peft_model(
        plain, LoraConfig(**training_setup(configuration(8, lora="8"), cpu(), {}, "causal-lm").adapter)
    )
    assert SETTING.read_back(observed(model=made)) == "8"
    made.get_base_model().lm_head.weight.requires_grad = True
    assert SETTING.read_back(observed(model=made)) == "with other weights"
