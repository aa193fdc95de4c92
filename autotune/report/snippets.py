"""The answer in every form that people paste: Python, a command line, JSON, YAML."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.report.exports import YAML_FILE, switch_lines
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.report.facts import Facts
from autotune.report.plain import launch_lines
from autotune.report.script_lines import WITHOUT_MASK, adapter_text, collator_text, mask_lines, model_lines

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


def pastes(facts: Facts) -> list[Paste]:
    """The answer in every form, the usual one first; empty where nothing fits.

    JSON and YAML hold the fields of `TrainingArguments` alone, as `HfArgumentParser` reads them from a file.
    """
    if facts.best is None:
        return []
    fields, besides = dict(facts.answer), _besides(facts)
    note = _note([*besides, *_start(facts)])
    unmade = [] if _has_name(facts) else _model_text(facts)
    flags, unsaid = _flags(fields)
    left_out = f" No flag takes {', '.join(unsaid)}: set it in the script." if unsaid else ""
    return [
        Paste("python", "Python", _python(facts), _note([*unmade, *_start(facts)])),
        Paste(
            "command",
            "Command line",
            "\n\n".join(_command(line, flags) for line in launch_lines(facts)),
            f"For a script that reads TrainingArguments with HfArgumentParser.{left_out} {_note(besides)}".strip(),
        ),
        Paste("json", "JSON", json.dumps(fields, indent=1), f"best_training_arguments.json. {note}".strip()),
        Paste("yaml", "YAML", _yaml(fields), f"{YAML_FILE}. {note}".strip()),
    ]


def _python(facts: Facts) -> str:
    lines = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    lines += ["    output_dir='output',", *(f"    {name}={value!r}," for name, value in facts.answer.items()), ")"]
    if (elsewhere := facts.elsewhere) and elsewhere.auto_class and facts.model_answer:
        lines += ["", *model_lines(elsewhere.auto_class, elsewhere.model, facts.model_answer)]
    if facts.adapter:
        lines += ["", "from peft import LoraConfig, get_peft_model"]
        lines += [f"model = get_peft_model(model, {adapter_text(facts.adapter)})"]
    if collator := collator_text(facts.task, facts.data_answer):
        lines += ["", f"from transformers import {collator.partition('(')[0]}", f"data_collator = {collator}"]
    if masked := mask_lines(facts.data_answer):
        lines += ["", *masked]
    if facts.switches:
        lines += ["", "import torch", *switch_lines(facts.switches)]
    return "\n".join(lines)


def _note(said: list[str]) -> str:
    return f"What no training argument holds: {'; '.join(said)}." if said else ""


def _has_name(facts: Facts) -> bool:
    """Whether a name loads the model."""
    return facts.elsewhere is not None and bool(facts.elsewhere.auto_class)


def _model_text(facts: Facts) -> list[str]:
    """What the model is made with."""
    told = ", ".join(f"{name}={value!r}" for name, value in facts.model_answer.items())
    return [f"from_pretrained(name, {told})" if _has_name(facts) else f"your model with {told}"] if told else []


def _start(facts: Facts) -> list[str]:
    """How it is started, where that is not with Python alone."""
    return launch_lines(facts)[:1] if facts.variables or facts.processes > 1 else []


def _besides(facts: Facts) -> list[str]:
    """What the answer holds beside training arguments, each in a few words."""
    collator = collator_text(facts.task, facts.data_answer)
    return [
        *_model_text(facts),
        *([f"get_peft_model(model, {adapter_text(facts.adapter)})"] if facts.adapter else []),
        *([f"data_collator={collator}"] if collator else []),
        *([f"batches {WITHOUT_MASK}"] if mask_lines(facts.data_answer) else []),
        *switch_lines(facts.switches),
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
