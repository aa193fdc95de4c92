"""LoRA and its targets."""

from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.core import Outcome
from autotune.core.failures import from_exception
from autotune.space.settings import SETTINGS, Context
from autotune.space.settings.lora import SETTING
from autotune.space.setup import training_setup
from autotune.workload.model.adapters import adapted, adapter_targets
from autotune.workload.model.build import choose_task, model_outline
from tests.makers import configuration, cpu, workload
from tests.space.settings.fakes import observed

# PEFT asks by a deprecated name, and says that it turns the weights of a GPT-2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing:FutureWarning", "ignore:fan_in_fan_out is set to False:UserWarning"
)

TARGETS = SETTINGS["lora_targets"]
SMALL = {
    "gpt2": {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 32},
    "llama": {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16},
    "t5": {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_ff": 16},
    "deberta-v2": {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16},
    "qwen2_moe": {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2},
}


def adapter_of(task: str, **settings: str) -> dict[str, Any]:
    return dict(training_setup(configuration(8, **settings), cpu(), {}, task).adapter)


def test_a_rank_makes_fields_of_peft_s_config() -> None:
    fields = adapter_of("causal-lm", lora="16")
    assert fields == {"r": 16, "lora_alpha": 32, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    assert LoraConfig(**fields).r == 16
    assert "task_type" not in adapter_of("masked-lm", lora="16")


def test_it_is_read_back_from_what_is_trained() -> None:
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **SMALL["gpt2"]))
    assert SETTING.read_back(observed(model=plain)) == "none"
    made = get_peft_model(plain, LoraConfig(**adapter_of("causal-lm", lora="8")))
    assert SETTING.read_back(observed(model=made)) == "8"
    made.get_base_model().lm_head.weight.requires_grad = True
    assert SETTING.read_back(observed(model=made)) == "with other weights"


def test_the_targets_are_a_field_of_the_adapter_whatever_stands_first() -> None:
    assert TARGETS.from_user(Context(cpu(), workload())) == "all_linear"
    for settings in ({"lora": "8", "lora_targets": "attention"}, {"lora_targets": "attention", "lora": "8"}):
        fields = adapter_of("causal-lm", **settings)
        assert "q_proj" in fields["target_modules"]
    fields = adapter_of("causal-lm", lora="8", lora_targets="all_linear")
    assert fields["target_modules"] == "all-linear"
    assert adapter_of("causal-lm", lora="none", lora_targets="attention") == {}


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # of DeBERTa, until torch 2.13
@pytest.mark.parametrize("value", ["all_linear", "attention"])
@pytest.mark.parametrize("kind", SMALL)
def test_the_targets_are_read_back_from_the_layers_that_have_an_adapter(kind: str, value: str) -> None:
    config = AutoConfig.for_model(kind, **SMALL[kind])
    task = choose_task(config, None)
    fields = adapter_of(task, lora="2", lora_targets=value)
    outline = model_outline(config, task)
    assert TARGETS.unavailable(value, Context(cpu(), workload(adapter_targets=adapter_targets(outline)))) is None
    assert TARGETS.read_back(observed(model=outline)) is None, "without an adapter"
    made = get_peft_model(outline, LoraConfig(**fields), low_cpu_mem_usage=True)
    assert TARGETS.read_back(observed(model=made)) == value


def test_a_model_whose_attention_has_other_names_is_left_out_with_the_reason_and_peft_refuses_it() -> None:
    config = AutoConfig.for_model("funnel", block_sizes=[1], num_decoder_layers=1, d_model=8, n_head=2, d_head=4)
    outline = model_outline(config, "masked-lm")
    known = workload(adapter_targets=adapter_targets(outline))
    assert TARGETS.unavailable("all_linear", Context(cpu(), known)) is None
    assert "FunnelForMaskedLM" in str(TARGETS.unavailable("attention", Context(cpu(), known)))
    fields = adapter_of("masked-lm", lora="2", lora_targets="attention")
    with pytest.raises(ValueError, match="not found in the base model") as caught:
        adapted(outline, fields)
    assert from_exception(caught.value, "build").outcome is Outcome.UNSUPPORTED
