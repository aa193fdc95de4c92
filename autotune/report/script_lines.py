"""Lines of Python for a training script: the arguments, the model, what stands beside them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.exports import answer_of, switch_lines
from autotune.space.settings import attention_mask
from autotune.study.result import SearchResult

WIDTH = 76
"""Letters of a line: indented, it fits a terminal's 80."""

PLAIN_MODEL = {"dtype": "float32"}
"""What a config alone makes."""

COLLATORS = {
    "masked-lm": "DataCollatorForLanguageModeling(tokenizer, {})",
    "causal-lm": "DataCollatorForLanguageModeling(tokenizer, mlm=False, {})",
    "seq2seq-lm": "DataCollatorForSeq2Seq(tokenizer, {})",
    "token-classification": "DataCollatorForTokenClassification(tokenizer, {})",
}
"""The usual collator of a task; of any other one `DataCollatorWithPadding`."""

WITHOUT_MASK = "without an attention_mask that hides nothing"

MASK_LINES = [
    "from transformers import default_data_collator",
    "def data_collator(samples, collate=default_data_collator):  # or yours",
    "    batch = collate(samples)",
    '    if "attention_mask" in batch and (batch["attention_mask"] == 1).all():',
    '        del batch["attention_mask"]  # it hides nothing',
    "    return batch",
]


def collator_text(task: str, asked: Mapping[str, Any]) -> str:
    """The collator that makes batches as they were measured; empty where it is the usual one."""
    if asked.get("packing"):
        return "DataCollatorWithFlattening()"
    multiple = asked.get("pad_to_multiple_of")
    if not multiple:
        return ""
    return COLLATORS.get(task, "DataCollatorWithPadding(tokenizer, {})").format(f"pad_to_multiple_of={multiple}")


def mask_lines(asked: Mapping[str, Any]) -> list[str]:
    """A collator that leaves a mask out where it hides nothing, as it was measured; none where every batch has its mask."""
    return MASK_LINES if asked.get(attention_mask.FIELD) else []


def adapter_text(adapter: Mapping[str, Any]) -> str:
    """The adapter as PEFT writes it: `LoraConfig(r=8, ...)`."""
    return f"LoraConfig({', '.join(f'{name}={value!r}' for name, value in adapter.items())})"


def model_lines(auto_class: str, model: str, arguments: Mapping[str, Any]) -> list[str]:
    """`from_pretrained` with the answer's keywords, four bits as the class that it wants them in."""
    kept = {name: repr(value) for name, value in arguments.items() if value is not None}
    lines = [f"from transformers import {auto_class}"]
    if quantization := arguments.get("quantization_config"):
        kept["quantization_config"] = "quantization"
        lines.append("from transformers import BitsAndBytesConfig")
        lines += _call("quantization = BitsAndBytesConfig", [f"{name}={one!r}" for name, one in quantization.items()])
    said = [repr(model), *(f"{name}={value}" for name, value in kept.items())]
    return [*lines, *_call(f"model = {auto_class}.from_pretrained", said)]


def _call(begun: str, arguments: Sequence[str]) -> list[str]:
    """A call on one line, or with a line for each argument."""
    whole = f"{begun}({', '.join(arguments)})"
    return [whole] if len(whole) <= WIDTH else [f"{begun}(", *(f"    {one}," for one in arguments), ")"]


def _model_lines(result: SearchResult) -> list[str]:
    """The model as it was measured; of one that no name loads a comment, where it is not simply what its config makes."""
    if (answer := answer_of(result)) and answer.auto_class and answer.model_arguments:
        return model_lines(answer.auto_class, answer.model, answer.model_arguments)
    asked = {name: value for name, value in result.best_setup.model_arguments.items() if value is not None}
    if asked in ({}, PLAIN_MODEL):
        return []
    told = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    return textwrap.wrap(f"# your model, made with {told}", WIDTH, subsequent_indent="# ", break_long_words=False)


def paste_lines(where: str, result: SearchResult) -> list[str]:
    """What to paste into a training script, from the files in `where`."""
    lines = [
        "import json",
        "from transformers import TrainingArguments",
        f'tuned = json.load(open("{where}/best_training_arguments.json"))',
        'arguments = TrainingArguments(output_dir="output", **tuned)',
    ]
    lines += _model_lines(result)
    if result.best_setup.switches:
        lines += ["import torch", *switch_lines(result.best_setup.switches)]
    if result.best_setup.adapter:
        lines += [
            "from peft import LoraConfig, get_peft_model",
            f'model = get_peft_model(model, LoraConfig(**json.load(open("{where}/best_adapter.json"))))',
        ]
    if collator := collator_text(result.workload.task, result.best_setup.data_arguments):
        lines += [f"from transformers import {collator.partition('(')[0]}", f"data_collator = {collator}"]
    return [*lines, *mask_lines(result.best_setup.data_arguments)]
