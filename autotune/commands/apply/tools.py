"""Changes of an answer in the names of a tool, and which tool a config file or a command belongs to."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.report.exports import DEEPSPEED, Answer, answer_of, switch_lines
from autotune.report.exports.answer import without
from autotune.report.exports.axolotl import OLDER_ATTENTION, axolotl_config
from autotune.report.exports.commented_yaml import ToolConfig
from autotune.report.exports.llama_factory import llama_factory_config
from autotune.report.exports.trl_config import trl_config
from autotune.report.snippets import baseline_setup, differ
from autotune.space.setup import FINDER, training_setup
from autotune.study.result import SearchResult

PARSER, TRL, AXOLOTL, LLAMA_FACTORY = "HfArgumentParser", "TRL", "axolotl", "LLaMA-Factory"

CONFIGS: dict[str, Callable[[Answer], ToolConfig]] = {
    PARSER: lambda answer: ToolConfig(answer.fields, without(answer.parts(), answer.fields)),
    TRL: trl_config,
    AXOLOTL: axolotl_config,
    LLAMA_FACTORY: llama_factory_config,
}
"""Tool -> an answer in its names."""

KEYS = {
    "accelerate": ("compute_environment", "distributed_type"),
    "DeepSpeed": ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
    AXOLOTL: ("base_model", "micro_batch_size", "sequence_len"),
    LLAMA_FACTORY: ("finetuning_type", "cutoff_len", "template", "enable_liger_kernel", "flash_attn"),
    TRL: (
        *("max_length", "packing", "padding_free", "use_peft", "lora_r", "lora_alpha", "dataset_text_field"),
        *("loss_type", "completion_only_loss", "assistant_only_loss", "beta", "max_completion_length", "eos_token"),
        "chat_template_path",
    ),
}
"""Tool -> keys of which its config files hold at least one, and those of the tools below it none."""

BY_HAND = ("accelerate", "DeepSpeed")
"""Tools whose files follow from the arguments and the launcher together."""

FINETUNING = "finetuning_type"
"""LLaMA-Factory's key that says whether there is an adapter, which may be the user's own."""


@dataclass(frozen=True)
class Changes:
    """values: key -> value to set. removed: keys that go back to the tool's default. by_hand: what no key says."""

    values: dict[str, Any]
    removed: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()


def tool_of(keys: Collection[str], fields: Collection[str]) -> str:
    """The tool whose config file has these keys. fields: of `TrainingArguments`. Raises InvalidRequest if it is none."""
    for tool, of_tool in KEYS.items():
        if not {*of_tool}.isdisjoint(keys):
            return tool
    if {*fields}.isdisjoint(keys):
        raise InvalidRequest(
            "The file has no key of TrainingArguments, TRL, axolotl or LLaMA-Factory.",
            "Set what the study's summary.md names by hand.",
        )
    return PARSER


def changes(result: SearchResult, tool: str, current: Mapping[str, Any]) -> Changes:
    """Changes, in the tool's names, that make the user's training that of the answer.

    All in which the answer differs from the settings that it was compared with, and what the user has at another value than
    the answer's setting.

    current: key -> value that the user has already, by file or by flag. Empty if the answer is the user's own settings.
    """
    answer = answer_of(result)
    if answer is None:
        return Changes({})
    of_settings = training_setup(result.best.configuration, result.environment, {}, result.workload.task)
    searched = CONFIGS[tool](replace(answer, setup=of_settings, sequence_length=None)).keys.keys() - {FINETUNING}
    baseline = replace(answer, setup=baseline_setup(result))
    now, was = (CONFIGS[tool](side) for side in (answer, baseline))
    keys, before = dict(now.keys), dict(was.keys)
    deepspeed, previous = (side.setup.training_arguments.get("deepspeed") for side in (answer, baseline))
    if deepspeed == previous:
        keys.pop("deepspeed", None)
        before.pop("deepspeed", None)
    elif isinstance(deepspeed, Mapping):
        keys["deepspeed"] = str((result.folder or Path()) / DEEPSPEED)
    spelled = {key: _spelled(key, current) for key in (*keys, *before)}
    values = {
        spelled[key]: value
        for key, value in keys.items()
        if (differ(key, before.get(key), value) or (key in searched and spelled[key] in current))
        and not (spelled[key] in current and str(current[spelled[key]]).lower() == str(value).lower())
    }
    gone = [key for key in before if key not in keys and differ(key, before[key], None)]
    removed = [spelled[key] for key in gone if spelled[key] in current]
    removed += [FINDER] if FINDER in current else []
    if tool == AXOLOTL and "attn_implementation" in values:  # it refuses its older flags beside it
        removed += [name for name in OLDER_ATTENTION.values() if name in current]
    if isinstance(plugins := current.get("plugins"), list):  # others than ours stay
        others = [plugin for plugin in plugins if plugin not in before.get("plugins", ())]
        if "plugins" in values:
            values["plugins"] = [*plugins, *(plugin for plugin in values["plugins"] if plugin not in plugins)]
        elif "plugins" in removed and others:
            removed.remove("plugins")
            values["plugins"] = others
    lines = dict.fromkeys(switch_lines(answer.setup.switches))
    missing = {name: value for name, value in now.missing.items() if was.missing.get(name) != value}
    by_hand = [name if name in lines else f"{name} = {json.dumps(value)}" for name, value in missing.items()]
    by_hand += [f"{name}: as by default" for name in was.missing if name not in now.missing]
    return Changes(values, tuple(removed), tuple(by_hand))


def _spelled(key: str, current: Mapping[str, Any]) -> str:
    """The name of checkpointing's field that the user has: if both are there, the older one wins."""
    older, newer = "gradient_checkpointing", "activation_checkpointing"
    other = key.replace(newer, older) if newer in key else key.replace(older, newer)
    return other if other in current and (key not in current or older in other) else key
