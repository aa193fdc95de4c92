"""The answer in every form that people paste: Python, a command line, JSON, YAML."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.report.exports import YAML_FILE, answer_of, switch_lines
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.report.plain import launch_lines
from autotune.report.script_lines import WITHOUT_MASK, adapter_text, collator_text, mask_lines, model_lines
from autotune.study.result import SearchResult

AS_JSON = (
    *("accelerator_config", "activation_checkpointing_kwargs", "deepspeed", "fsdp_config"),
    *("gradient_checkpointing_kwargs", "lr_scheduler_kwargs"),
)
"""Fields that take a dict as JSON on a command line: `TrainingArguments._VALID_DICT_FIELDS`."""


@dataclass(frozen=True)
class Paste:
    """One form. name: short, for links; title, note: plain text for people; text: what goes to the clipboard."""

    name: str
    title: str
    text: str
    note: str = ""


def pastes(result: SearchResult) -> list[Paste]:
    """The answer in every form, the usual one first; empty where nothing fits.

    JSON and YAML hold the fields of `TrainingArguments` alone, as `HfArgumentParser` reads them from a file.
    """
    if result.best_trial is None:
        return []
    fields, besides = dict(result.best_setup.training_arguments), _besides(result)
    note = _note([*besides, *_start(result)])
    unmade = [] if _has_name(result) else _model_text(result)
    flags, unsaid = _flags(fields)
    left_out = f" No flag takes {', '.join(unsaid)}: set it in the script." if unsaid else ""
    return [
        Paste("python", "Python", _python(result), _note([*unmade, *_start(result)])),
        Paste(
            "command",
            "Command line",
            "\n\n".join(_command(line, flags) for line in launch_lines(result)),
            f"For a script that reads TrainingArguments with HfArgumentParser.{left_out} {_note(besides)}".strip(),
        ),
        Paste("json", "JSON", json.dumps(fields, indent=1), f"best_training_arguments.json. {note}".strip()),
        Paste("yaml", "YAML", _yaml(fields), f"{YAML_FILE}. {note}".strip()),
    ]


def _python(result: SearchResult) -> str:
    lines = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    lines += [
        "    output_dir='output',",
        *(f"    {name}={value!r}," for name, value in result.best_setup.training_arguments.items()),
        ")",
    ]
    if (answer := answer_of(result)) and answer.auto_class and answer.model_arguments:
        lines += ["", *model_lines(answer.auto_class, answer.model, answer.model_arguments)]
    if result.best_setup.adapter:
        lines += ["", "from peft import LoraConfig, get_peft_model"]
        lines += [f"model = get_peft_model(model, {adapter_text(result.best_setup.adapter)})"]
    if collator := collator_text(result.workload.task, result.best_setup.data_arguments):
        lines += ["", f"from transformers import {collator.partition('(')[0]}", f"data_collator = {collator}"]
    if masked := mask_lines(result.best_setup.data_arguments):
        lines += ["", *masked]
    if result.best_setup.switches:
        lines += ["", "import torch", *switch_lines(result.best_setup.switches)]
    return "\n".join(lines)


def _note(said: list[str]) -> str:
    return f"What no training argument holds: {'; '.join(said)}." if said else ""


def _has_name(result: SearchResult) -> bool:
    """Whether a name loads the model."""
    return bool((answer := answer_of(result)) and answer.auto_class)


def _model_text(result: SearchResult) -> list[str]:
    """What the model is made with."""
    told = ", ".join(f"{name}={value!r}" for name, value in result.best_setup.model_arguments.items())
    return [f"from_pretrained(name, {told})" if _has_name(result) else f"your model with {told}"] if told else []


def _start(result: SearchResult) -> list[str]:
    """How it is started, where that is not with Python alone."""
    return launch_lines(result)[:1] if result.best_setup.variables or result.best_setup.processes > 1 else []


def _besides(result: SearchResult) -> list[str]:
    """What the answer holds beside training arguments, each in a few words."""
    collator = collator_text(result.workload.task, result.best_setup.data_arguments)
    return [
        *_model_text(result),
        *([f"get_peft_model(model, {adapter_text(result.best_setup.adapter)})"] if result.best_setup.adapter else []),
        *([f"data_collator={collator}"] if collator else []),
        *([f"batches {WITHOUT_MASK}"] if mask_lines(result.best_setup.data_arguments) else []),
        *switch_lines(result.best_setup.switches),
    ]


def _flags(fields: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """`--name value` of each field that says something, and the names of those that no flag can say."""
    flags, unsaid = [], []
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and name in AS_JSON:
            flags.append(f"--{name} {shlex.quote(json.dumps(value))}")
        elif isinstance(value, Mapping | list | tuple):
            unsaid.append(name)
        else:
            flags.append(f"--{name} {shlex.quote(str(value))}")
    return flags, unsaid


def _command(line: str, flags: list[str]) -> str:
    return " \\\n    ".join([f"{line} --output_dir output", *flags])


def _yaml(fields: Mapping[str, Any]) -> str:
    return commented_yaml([], fields).rstrip("\n")
