"""The answer to paste: lines of a training script, a command line, JSON, YAML."""

import json
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report.exports import YAML_FILE, answer_of, switch_lines
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.space.launch import accelerate_line, launch_line
from autotune.space.settings import attention_mask
from autotune.study.result import SearchResult

WIDTH = 76
"""Characters of a line: indented, it fits a terminal's 80."""

PLAIN_MODEL = {"dtype": "float32"}
"""Model arguments that a config alone already implies."""

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

AS_JSON = (
    *("accelerator_config", "activation_checkpointing_kwargs", "deepspeed", "fsdp_config"),
    *("gradient_checkpointing_kwargs", "lr_scheduler_kwargs"),
)
"""Fields that take a dict as JSON on a command line: `TrainingArguments._VALID_DICT_FIELDS`."""


@dataclass(frozen=True)
class Snippet:
    """One form of the answer; title and note are plain text."""

    name: str  # short, for links
    title: str
    text: str  # what goes to the clipboard
    note: str = ""


def snippets(result: SearchResult) -> list[Snippet]:
    """The answer in every form, the usual one first; empty where nothing fits.

    JSON and YAML hold the fields of `TrainingArguments` alone, as `HfArgumentParser` reads them from a file.
    """
    if result.best_trial is None:
        return []
    setup, starts = result.best_setup, launch_lines(result)
    start = f"Start with: {starts[0]}." if setup.variables or setup.processes > 1 else ""
    groups = _groups(result, adapter_text(setup.adapter))
    rest = "What no training argument holds is in the Python form." if groups else ""
    note = f"{rest} {start}".strip()
    flags, without_flag = _flags(setup.training_arguments)
    by_hand = f" No flag takes {', '.join(without_flag)}: set it in the script." if without_flag else ""
    fields = [f"    {name}={value!r}," for name, value in setup.training_arguments.items()]
    python = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    python += ["    output_dir='output',", *fields, ")"]
    for group in groups:
        python += ["", *group]
    return [
        Snippet("python", "Python", "\n".join(python), start),
        Snippet(
            "command",
            "Command line",
            "\n\n".join(" \\\n    ".join([f"{line} --output_dir output", *flags]) for line in starts),
            f"For a script that reads TrainingArguments with HfArgumentParser.{by_hand} {rest}".strip(),
        ),
        Snippet(
            "json",
            "JSON",
            json.dumps(dict(setup.training_arguments), indent=1),
            f"best_training_arguments.json. {note}".strip(),
        ),
        Snippet(
            "yaml", "YAML", commented_yaml([], setup.training_arguments).rstrip("\n"), f"{YAML_FILE}. {note}".strip()
        ),
    ]


def script_lines(folder: str, result: SearchResult) -> list[str]:
    """Lines for a training script that reads the answer from the files in this folder."""
    lines = [
        "import json",
        "from transformers import TrainingArguments",
        f'tuned = json.load(open("{folder}/best_training_arguments.json"))',
        'arguments = TrainingArguments(output_dir="output", **tuned)',
    ]
    adapter = f'LoraConfig(**json.load(open("{folder}/best_adapter.json")))'
    return [*lines, *(line for group in _groups(result, adapter) for line in group)]


def launch_lines(result: SearchResult) -> list[str]:
    """Commands that each start the training as it was measured; empty where there is no answer."""
    if result.best_trial is None:
        return []
    ranks, variables = result.best_setup.processes, result.best_setup.variables
    return [line for line in (launch_line(ranks, variables), accelerate_line(ranks, variables)) if line]


def collator_text(task: str, data_arguments: Mapping[str, Any]) -> str:
    """The collator that makes batches as they were measured; empty where it is the usual one."""
    if data_arguments.get("packing"):
        return "DataCollatorWithFlattening()"
    multiple = data_arguments.get("pad_to_multiple_of")
    if not multiple:
        return ""
    return COLLATORS.get(task, "DataCollatorWithPadding(tokenizer, {})").format(f"pad_to_multiple_of={multiple}")


def mask_lines(data_arguments: Mapping[str, Any]) -> list[str]:
    """A collator that leaves out a mask that hides nothing, as it was measured; empty where every batch has its mask."""
    return MASK_LINES if data_arguments.get(attention_mask.FIELD) else []


def adapter_text(adapter: Mapping[str, Any]) -> str:
    """The adapter as PEFT writes it: `LoraConfig(r=8, ...)`."""
    return f"LoraConfig({', '.join(f'{name}={value!r}' for name, value in adapter.items())})"


def _groups(result: SearchResult, adapter: str) -> list[list[str]]:
    """Lines of Python for what no training argument holds, a group each: model, adapter, collator, switches."""
    setup = result.best_setup
    groups = [_model_lines(result)]
    if setup.adapter:
        groups.append(["from peft import LoraConfig, get_peft_model", f"model = get_peft_model(model, {adapter})"])
    if collator := collator_text(result.workload.task, setup.data_arguments):
        groups.append([f"from transformers import {collator.partition('(')[0]}", f"data_collator = {collator}"])
    mask = mask_lines(setup.data_arguments)
    if collator and mask:  # on top of that collator
        mask = [line.replace("default_data_collator", "data_collator") for line in mask[1:]]
    groups.append(mask)
    if setup.switches:
        groups.append(["import torch", *switch_lines(setup.switches)])
    return [group for group in groups if group]


def _model_lines(result: SearchResult) -> list[str]:
    """`from_pretrained` with the answer's keywords, four bits as their class; of a model that no name loads a comment."""
    answer = answer_of(result)
    arguments = {name: value for name, value in result.best_setup.model_arguments.items() if value is not None}
    if not answer or not arguments or (not answer.auto_class and arguments == PLAIN_MODEL):
        return []
    if not answer.auto_class:
        comment = f"# your model, made with {', '.join(f'{name}={value!r}' for name, value in arguments.items())}"
        return textwrap.wrap(comment, WIDTH, subsequent_indent="# ", break_long_words=False)
    keywords = {name: repr(value) for name, value in arguments.items()}
    lines = [f"from transformers import {answer.auto_class}"]
    if quantization := answer.quantization:
        keywords["quantization_config"] = "quantization"
        lines.append("from transformers import BitsAndBytesConfig")
        fields = [f"{name}={value!r}" for name, value in quantization.items()]
        lines += _call("quantization = BitsAndBytesConfig", fields)
    keyword_texts = [f"{name}={value}" for name, value in keywords.items()]
    return [*lines, *_call(f"model = {answer.auto_class}.from_pretrained", [repr(answer.model), *keyword_texts])]


def _call(function: str, arguments: Sequence[str]) -> list[str]:
    """A call on one line, or with a line for each argument."""
    line = f"{function}({', '.join(arguments)})"
    return [line] if len(line) <= WIDTH else [f"{function}(", *(f"    {argument}," for argument in arguments), ")"]


def _flags(fields: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """`--name value` of each field that has a value, and the names of those that no flag can set."""
    flags, without_flag = [], []
    for name, value in fields.items():
        if isinstance(value, Mapping) and name in AS_JSON:
            flags.append(f"--{name} {shlex.quote(json.dumps(value))}")
        elif isinstance(value, Mapping | list | tuple):
            without_flag.append(name)
        elif value is not None:
            flags.append(f"--{name} {shlex.quote(str(value))}")
    return flags, without_flag
