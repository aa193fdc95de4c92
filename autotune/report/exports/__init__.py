"""The same answer for transformers' parser, accelerate, TRL, axolotl, LLaMA-Factory and DeepSpeed; pure functions to texts."""

import json

from autotune.report.exports.accelerate_config import accelerate_yaml
from autotune.report.exports.accelerate_loop import accelerate_loop
from autotune.report.exports.answer import Answer, answer_of, auto_class, switch_lines
from autotune.report.exports.axolotl import axolotl_yaml
from autotune.report.exports.llama_factory import llama_factory_yaml
from autotune.report.exports.training_arguments_file import training_arguments_yaml
from autotune.report.exports.trl_config import trl_yaml

YAML_FILE = "best_training_arguments.yaml"
"""The answer alone, as HfArgumentParser.parse_yaml_file reads it."""

MAKERS = {
    YAML_FILE: training_arguments_yaml,
    "accelerate_config.yaml": accelerate_yaml,
    "accelerate_loop.py": accelerate_loop,
    "trl.yaml": trl_yaml,
    "axolotl.yaml": axolotl_yaml,
    "llama_factory.yaml": llama_factory_yaml,
}
DEEPSPEED = "ds_config.json"

EXPORTS = (*MAKERS, DEEPSPEED)
"""Names of all files that may be written; DeepSpeed's only where the answer uses it."""


def exports(answer: Answer | None) -> dict[str, str]:
    """File name -> text, for every tool that this answer can be said to; empty where there is no answer."""
    if answer is None:
        return {}
    made = {name: make(answer) for name, make in MAKERS.items()}
    if answer.deepspeed is not None:
        made[DEEPSPEED] = json.dumps(answer.deepspeed, indent=1) + "\n"
    return made


__all__ = ["EXPORTS", "YAML_FILE", "Answer", "answer_of", "auto_class", "exports", "switch_lines"]
