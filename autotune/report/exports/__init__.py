"""Files with the answer for transformers' parser, accelerate, TRL, axolotl, LLaMA-Factory and DeepSpeed."""

import json
from collections.abc import Callable

from autotune.report.exports.accelerate_config import accelerate_yaml
from autotune.report.exports.accelerate_loop import accelerate_loop
from autotune.report.exports.answer import Answer, answer_of, auto_class, switch_lines
from autotune.report.exports.axolotl import axolotl_config
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.report.exports.llama_factory import llama_factory_config
from autotune.report.exports.trl_config import trl_config

YAML_FILE = "best_training_arguments.yaml"
"""The answer alone, as HfArgumentParser.parse_yaml_file reads it."""

PARSER_LINE = f"(arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file({YAML_FILE!r})"

MAKERS: dict[str, Callable[[Answer], str]] = {
    YAML_FILE: lambda answer: commented_yaml([PARSER_LINE], answer.setup.training_arguments),
    "accelerate_config.yaml": accelerate_yaml,
    "accelerate_loop.py": accelerate_loop,
    "trl.yaml": lambda answer: trl_config(answer).text,
    "axolotl.yaml": lambda answer: axolotl_config(answer).text,
    "llama_factory.yaml": lambda answer: llama_factory_config(answer).text,
}
DEEPSPEED = "ds_config.json"

EXPORTS = (*MAKERS, DEEPSPEED)
"""Names of all files that may be written; DeepSpeed's only if the answer uses it."""


def exports(answer: Answer | None) -> dict[str, str]:
    """File name -> text, for every tool; empty if there is no answer."""
    if answer is None:
        return {}
    files = {name: make(answer) for name, make in MAKERS.items()}
    if answer.deepspeed is not None:
        files[DEEPSPEED] = json.dumps(answer.deepspeed, indent=1) + "\n"
    return files


__all__ = ["EXPORTS", "YAML_FILE", "Answer", "answer_of", "auto_class", "exports", "switch_lines"]
