"""Snippets to paste: the answer as Python, command line, YAML and JSON with its changes marked, and the search's command."""

import json
import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import word
from autotune.core.paths import hidden, shown
from autotune.core.request import DEFAULTS, OPTIONS, field_of, flag_of
from autotune.core.stop_reason import TIMES
from autotune.report.exports import YAML_FILE, answer_of, switch_lines
from autotune.report.exports.commented_yaml import commented_yaml
from autotune.space.launch import accelerate_line, launch_line
from autotune.space.settings import attention_mask
from autotune.space.setup import BATCH_FIELDS, TrainingSetup
from autotune.study.result import SearchResult, training_setup_of

WIDTH = 76
"""Characters of a line: indented, it fits a terminal's 80."""

ON_BY_DEFAULT = ("dataloader_pin_memory", "logging_nan_inf_filter", "remove_unused_columns")
"""Fields of `TrainingArguments` that settings change and whose default is True; that of all others is false, None or 0."""

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
    changed: Sequence[str] = ()  # lines of the text that differ from the user's own settings


def snippets(result: SearchResult) -> list[Snippet]:
    """The answer in every form, the usual one first; empty if it is the user's own settings, or if nothing fits.

    Python and the command line leave out fields that have their default before and after. YAML and JSON hold the fields of
    `TrainingArguments` alone, as `HfArgumentParser` reads them from a file, all of them.
    """
    if not result.changes_settings:
        return []
    setup, starts = result.best_setup, launch_lines(result)
    start = f"Start with: {starts[0]}." if setup.variables or setup.processes > 1 else ""
    groups = _groups(result, adapter_text(setup.adapter))
    rest = "What no training argument holds is in the Python form." if groups else ""
    arguments = setup.training_arguments
    was = was_arguments(result)
    own = {**result.request.training_args, **dict.fromkeys(ON_BY_DEFAULT)}
    shown = {name: value for name, value in arguments.items() if value or name in was or name in own}
    shown = {name: shown[name] for name in sorted(shown, key=lambda name: (name not in was, _size_rank(name)))}
    all_of_them = (
        f"All {len(arguments)} arguments: best_training_arguments.json." if len(shown) < len(arguments) else ""
    )
    flags, without_flag = _flags(shown)
    by_hand = f" No flag takes {', '.join(without_flag)}: set it in the script." if without_flag else ""
    fields_of_python = _python_fields(shown, was)
    python = ["from transformers import TrainingArguments", "", "arguments = TrainingArguments("]
    python += ['    output_dir="output",', *fields_of_python.values(), ")"]
    for group in groups:
        python += ["", *group]
    command = "\n\n".join(" \\\n    ".join([f"{line} --output_dir output", *flags.values()]) for line in starts)
    yaml = commented_yaml([], arguments).rstrip("\n")
    note = f"{rest} {start}".strip()
    return [
        Snippet(
            *("python", "Python", "\n".join(python), f"{all_of_them} {start}".strip()),
            changed=[line for name, line in fields_of_python.items() if name in was],
        ),
        Snippet(
            *("command", "Command line", command),
            f"For a script that reads TrainingArguments with HfArgumentParser.{by_hand} {rest}".strip(),
            [line for line in command.splitlines() if any(flags.get(name) == line.strip(" \\") for name in was)],
        ),
        Snippet(
            *("yaml", "YAML", yaml, f"{YAML_FILE}. {note}".strip()),
            [line for line in yaml.splitlines() if line.partition(":")[0] in was],
        ),
        Snippet("json", "JSON", json.dumps(dict(arguments), indent=1), f"best_training_arguments.json. {note}".strip()),
    ]


def was_arguments(result: SearchResult) -> dict[str, Any]:
    """Training argument that the answer changes -> its value in the user's own settings."""
    before, after = baseline_setup(result).training_arguments, result.best_setup.training_arguments
    if not before:
        return {}
    names = sorted(before.keys() | after.keys(), key=lambda name: (_size_rank(name), [*after, *before].index(name)))
    return {name: before.get(name) for name in names if differ(name, before.get(name), after.get(name))}


def _size_rank(name: str) -> int:
    """Sizes come first."""
    return BATCH_FIELDS.index(name) if name in BATCH_FIELDS else len(BATCH_FIELDS)


def differ(name: str, before: Any, after: Any) -> bool:
    """True if the values differ; None and False are the default in all fields but ON_BY_DEFAULT."""
    return before != after and bool(before or after or name in ON_BY_DEFAULT)


def setup_changes(result: SearchResult) -> dict[str, tuple[Any, Any]]:
    """Name -> (value of the user's own settings, value of the answer) of everything that differs, training arguments first."""
    before, after = (_flat(setup) for setup in (baseline_setup(result), result.best_setup))
    names = dict.fromkeys([*was_arguments(result), *after, *before])
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    arguments = result.best_setup.training_arguments
    return {name: (x, y) for name, (x, y) in pairs.items() if (differ(name, x, y) if name in arguments else x != y)}


def _flat(setup: TrainingSetup) -> dict[str, Any]:
    adapter = {f"adapter {name}": value for name, value in setup.adapter.items()}
    parts = (setup.model_arguments, setup.data_arguments, adapter, setup.switches, setup.variables)
    others = {name: value for part in parts for name, value in part.items()}
    return {**setup.training_arguments, **others, "processes": setup.processes}


def baseline_setup(result: SearchResult) -> TrainingSetup:
    """Training setup of the user's own settings; empty if they were never probed."""
    return training_setup_of(result, result.baseline_trial) if result.baseline_trial else TrainingSetup()


def _python_fields(arguments: Mapping[str, Any], was: Mapping[str, Any]) -> dict[str, str]:
    """Field -> its line of a call, the changed ones with what they were in a comment."""
    lines = {name: f"    {name}={literal(value)}," for name, value in arguments.items()}
    width = max((len(lines[name]) for name in was if name in lines), default=0)
    return {
        name: f"{line:<{min(width, WIDTH // 2)}}  # was {literal(was[name])}" if name in was else line
        for name, line in lines.items()
    }


def literal(value: Any) -> str:
    """The value in Python, a plain text in double quotes."""
    is_plain = isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}
    return f'"{value}"' if is_plain else repr(value)


def search_command(result: SearchResult, **changed: Any) -> str:
    """The command line of the search, with these values of options instead of its own.

    The user's own words if they are known, without --fresh; else all that differs from the defaults. Empty for a search from
    Python with a model or data of the caller's own.
    """
    request = result.request
    if result.workload.user_objects:
        return ""
    if result.command:
        words = ["autotune", *_without(result.command, "fresh", *changed)]
        return shlex.join([*words, *(word for name, value in changed.items() for word in option_words(name, value))])
    changed = {**_place(result), **changed}
    words = ["autotune", "search", request.model, "--global-batch-size", str(request.global_batch_size)]
    for name in OPTIONS:
        if field := field_of(name):
            value = changed.get(name, getattr(request, field))
            words += option_words(name, value) if value != DEFAULTS[field] else []
    return shlex.join(words)


def _place(result: SearchResult) -> dict[str, Any]:
    """Options that name the folder that the study was read from, if the request names another: it was moved or copied."""
    request, folder = result.request, result.folder and result.folder.resolve()
    recorded = request.study_folder(result.workload.task, result.environment.device)
    if folder is None or folder == recorded.resolve():
        return {}
    name = {} if folder.name == recorded.name else {"study_name": folder.name}
    return {"output_dir": hidden(shown(folder.parent)), **name}


def _without(words: Sequence[str], *names: str) -> list[str]:
    """The words of a command line without these options; all but `fresh` have a value."""
    flags, kept = {flag_of(name) for name in names}, iter(words)
    others = []
    for part in kept:
        if part in flags and part != "--fresh":
            next(kept, None)
        elif part.partition("=")[0] not in flags:
            others.append(part)
    return others


def larger_budget(result: SearchResult) -> dict[str, Any]:
    """The option that ended the search, with about twice its value."""
    request = result.request
    if request.timeout_s and result.stop.kind in TIMES:
        return {"timeout": 60.0 * max(3, math.ceil(request.timeout_s / 30))}
    return {"n_trials": max(20, 2 * request.n_trials)}


def option_words(name: str, value: Any) -> list[str]:
    """Words of a command line that set an option; value: as a request holds it, or as users write it."""
    flag, unit = flag_of(name), OPTIONS[name].unit if name in OPTIONS else ""
    if value is True:
        return [flag]
    if name == "args" and isinstance(value, Mapping):
        return [flag, "YOUR_ARGUMENTS.json"]
    if isinstance(value, Mapping):
        several = {key: each if isinstance(each, list | tuple) else [each] for key, each in value.items()}
        return [part for key, each in several.items() for part in (flag, f"{key}={','.join(map(word, each))}")]
    if isinstance(value, list | tuple):
        return [flag, ",".join(value)]
    if unit == "bytes" and isinstance(value, int):
        return [flag, f"{value >> 20}MiB" if value % 2**20 == 0 else str(value)]
    if unit == "seconds" and not isinstance(value, str):
        letter, size = ("m", 60) if value % 60 == 0 else ("s", 1)
        return [flag, f"{value / size:.15g}{letter}"]
    return [flag, str(value)]


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
    """Commands that each start the training as it was measured; empty if there is no answer."""
    if result.best_trial is None:
        return []
    ranks, variables = result.best_setup.processes, result.best_setup.variables
    return [line for line in (launch_line(ranks, variables), accelerate_line(ranks, variables)) if line]


def collator_text(task: str, data_arguments: Mapping[str, Any]) -> str:
    """The collator that makes batches as they were measured; empty if it is the usual one."""
    if data_arguments.get("packing"):
        return "DataCollatorWithFlattening()"
    multiple = data_arguments.get("pad_to_multiple_of")
    if not multiple:
        return ""
    return COLLATORS.get(task, "DataCollatorWithPadding(tokenizer, {})").format(f"pad_to_multiple_of={multiple}")


def mask_lines(data_arguments: Mapping[str, Any]) -> list[str]:
    """A collator that leaves out a mask that hides nothing, as it was measured; empty if every batch has its mask."""
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


def _flags(fields: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Field -> `--name value` of each that has a value, and the names of those that no flag can set."""
    flags, without_flag = {}, []
    for name, value in fields.items():
        if isinstance(value, Mapping) and name in AS_JSON:
            flags[name] = f"--{name} {shlex.quote(json.dumps(value))}"
        elif isinstance(value, Mapping | list | tuple):
            without_flag.append(name)
        elif value is not None:
            flags[name] = f"--{name} {shlex.quote(str(value))}"
    return flags, without_flag
