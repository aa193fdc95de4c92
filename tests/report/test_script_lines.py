"""Lines for a training script: what was measured is what they make."""

import ast
from typing import Any

import pytest
from autotune.report.snippets import collator_text, script_lines

from autotune.core.workload import Workload
from tests.makers import configuration, result, trial, workload

NAMED = workload(name="org/a-model-whose-name-is-long", source="org/a-model-whose-name-is-long")
BUILT_IN = workload()


def pasted(of: Workload, **settings: str) -> list[str]:
    """What is pasted for an answer of these settings, without the lines that read the arguments."""
    trials = [trial(0, 10.0), trial(1, 20.0, of=configuration(16, **settings))]
    lines = script_lines("reports/one", result(trials, workload=of))
    ast.parse("\n".join(lines))
    return lines[4:]


def test_a_model_that_a_name_loads_is_loaded_as_it_was_measured() -> None:
    assert pasted(workload(name="org/gpt2", source="org/gpt2")) == [
        "from transformers import AutoModelForCausalLM",
        "model = AutoModelForCausalLM.from_pretrained('org/gpt2', dtype='float32')",
    ]
    assert pasted(NAMED, attention="flash_attention_2", precision="bf16_weights") == [
        "from transformers import AutoModelForCausalLM",
        "model = AutoModelForCausalLM.from_pretrained(",
        "    'org/a-model-whose-name-is-long',",
        "    dtype='bfloat16',",
        "    attn_implementation='flash_attention_2',",
        ")",
    ]


def test_a_model_that_no_name_loads_is_spoken_of_where_its_config_alone_makes_another() -> None:
    assert pasted(BUILT_IN) == pasted(BUILT_IN, quantization="none") == []
    assert pasted(BUILT_IN, attention="flash_attention_2", precision="bf16_weights") == [
        "# your model, made with dtype='bfloat16',",
        "# attn_implementation='flash_attention_2'",
    ]


@pytest.mark.parametrize("of", [NAMED, BUILT_IN], ids=["named", "built in"])
@pytest.mark.parametrize(
    "settings", [{}, {"attention": "sdpa"}, {"quantization": "nf4"}, {"quantization": "none"}], ids=str
)
def test_the_model_s_lines_fit_eighty_columns(of: Workload, settings: dict[str, str]) -> None:
    assert all(len(line) <= 76 for line in pasted(of, **settings))


@pytest.mark.parametrize(
    ("task", "asked", "said"),
    [
        ("causal-lm", {"packing": True}, "DataCollatorWithFlattening()"),
        ("question-answering", {"pad_to_multiple_of": 8}, "DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)"),
        ("masked-lm", {"pad_to_multiple_of": 8}, "DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=8)"),
        ("causal-lm", {"packing": False, "pad_to_multiple_of": None}, ""),
        ("causal-lm", {}, ""),
    ],
)
def test_the_collator_is_told_where_it_is_not_the_usual_one(task: str, asked: dict[str, object], said: str) -> None:
    assert collator_text(task, asked) == said


def test_the_collator_that_is_pasted_leaves_out_a_mask_that_hides_nothing() -> None:
    made: dict[str, Any] = {}
    exec("\n".join(pasted(BUILT_IN, attention_mask="where_needed")), made)
    row = {"input_ids": [1, 2], "attention_mask": [1, 1]}
    assert made["data_collator"]([row]).keys() == {"input_ids"}
    assert made["data_collator"]([row, {**row, "attention_mask": [1, 0]}]).keys() == row.keys()
    assert pasted(BUILT_IN, attention_mask="always") == []
