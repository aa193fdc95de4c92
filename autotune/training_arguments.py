"""Configuration -> Hugging Face's names: the same for what a probe runs and for the answer."""

from collections.abc import Mapping
from typing import Any

from autotune.configuration import Configuration
from autotune.environment import Environment
from autotune.errors import InvalidRequest, did_you_mean
from autotune.levers import LEVERS, Settings
from autotune.levers.micro_batch_size import divisors

PRIVATE = (
    *("output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "local_rank"),
    *("hub_token", "push_to_hub_token"),
    "use_cpu",
)
"""Fields that never travel: folders, what belongs to one run alone, secrets, and the device, which `--device` decides."""

TASK_TYPES = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
}
"""PEFT's names of tasks (`peft.TaskType`): by them it leaves a new head of a classifier to be trained."""

ALL_LINEAR = "all-linear"
"""PEFT's word for every linear layer but the output's: what QLoRA's authors advise (arXiv 2305.14314, section 4)."""

FINDER = "auto_find_batch_size"
"""It would catch an out-of-memory and shrink the batch; dropped from probes and answer."""


def training_arguments(
    configuration: Configuration, environment: Environment, base: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields for `TrainingArguments(output_dir=..., **fields)`.

    Holds micro-batch size, accumulation and every field of every lever, at its default or not, `use_cpu` on a CPU, and
    what else the user set in `base` (fields that differ from the defaults).
    """
    settings = _settings(configuration, environment)
    left_out = {*PRIVATE, FINDER, *_aliases(environment)}
    fields = {name: value for name, value in base.items() if name not in left_out}
    fields["gradient_accumulation_steps"] = configuration.gradient_accumulation_steps
    for name, value in settings.training_arguments.items():
        # None means: as the user has it, else the default.
        fields[name] = fields.get(name) if value is None else _joined(fields.get(name), value)
    for name in settings.contradicts:
        fields.pop(name, None)
    if environment.is_cpu:
        fields["use_cpu"] = True
    return fields


def model_arguments(configuration: Configuration, environment: Environment) -> dict[str, Any]:
    """Fields for `AutoModelForX.from_pretrained(name, **fields)`."""
    return {"dtype": "float32", **_settings(configuration, environment).model_arguments}


def process_environment(configuration: Configuration, environment: Environment) -> dict[str, str]:
    """Environment variables that the training process needs."""
    return dict(_settings(configuration, environment).environment)


def data_arguments(configuration: Configuration, environment: Environment) -> dict[str, Any]:
    """How samples become a batch: `pad_to_multiple_of` (None: no such padding) and `packing`, where levers say so."""
    return dict(_settings(configuration, environment).data_arguments)


def adapter_arguments(configuration: Configuration, environment: Environment, task: str) -> dict[str, Any]:
    """Fields for PEFT's `LoraConfig`; empty where all weights are trained."""
    fields = dict(_settings(configuration, environment).adapter)
    if not fields.get("r"):
        return {}
    named = {"task_type": TASK_TYPES[task]} if task in TASK_TYPES else {}
    return {"target_modules": ALL_LINEAR, **fields, **named}


def _settings(configuration: Configuration, environment: Environment) -> Settings:
    every = [LEVERS[name].apply(value, environment) for name, value in configuration.values.items()]
    fields: dict[str, Any] = {}
    for one in every:
        fields |= {name: _joined(fields.get(name), value) for name, value in one.training_arguments.items()}
    return Settings(
        fields,
        {name: value for one in every for name, value in one.model_arguments.items()},
        {name: value for one in every for name, value in one.environment.items()},
        tuple(name for one in every for name in one.contradicts),
        {name: value for one in every for name, value in one.data_arguments.items()},
        {name: value for one in every for name, value in one.adapter.items()},
    )


def _joined(known: Any, value: Any) -> Any:
    """A dict joins the one that is there already; any other value takes its place."""
    return {**known, **value} if isinstance(known, Mapping) and isinstance(value, Mapping) else value


def _aliases(environment: Environment) -> set[str]:
    """The older spelling of checkpointing, where this transformers has a newer one."""
    new = "activation_checkpointing" in environment.training_argument_fields
    return {"gradient_checkpointing"} if new else set()


def baseline_sizes(global_batch_size: int, base: Mapping[str, Any]) -> tuple[int, str]:
    """The user's own micro-batch size made exact, and a line saying so where it had to change.

    Their micro-batch if it divides the target, else the largest divisor below it. Raises InvalidRequest where they
    state micro-batch and accumulation with another product, or no whole numbers.
    """
    stated = ("per_device_train_batch_size", "gradient_accumulation_steps")
    for name in stated:
        if type(size := base.get(name, 1)) is not int or size < 1:
            raise InvalidRequest(f"Your arguments say {name}: {size!r}.", "Make it a whole number from 1.")
    asked, accumulation = base.get(stated[0], 8), base.get(stated[1], 1)
    if all(name in base for name in stated) and asked * accumulation != global_batch_size:
        raise InvalidRequest(
            f"Your arguments say {asked} x {accumulation} = {asked * accumulation} samples a step, "
            f"the global batch size says {global_batch_size}.",
            "Make them agree, or leave gradient_accumulation_steps out of your arguments.",
        )
    size = max(divisor for divisor in divisors(global_batch_size) if divisor <= asked)
    note = "" if size == asked else f"your micro-batch size of {asked} became {size}, so that the global batch is exact"
    return size, note


def what_differs(base: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """The user's arguments without those that say what is the default anyway: a whole dump is as good as a few lines."""
    defaults = environment.training_argument_defaults
    return {name: value for name, value in base.items() if name not in defaults or defaults[name] != value}


def check_fields(base: Mapping[str, Any], environment: Environment, source: str) -> None:
    """Raise InvalidRequest where a field of the user's arguments is unknown to this transformers."""
    for name in base:
        if name not in environment.training_argument_fields:
            raise InvalidRequest(
                f"{source}: TrainingArguments of transformers {environment.versions.get('transformers')} "
                f"has no field {name!r}.",
                did_you_mean(name, environment.training_argument_fields).partition("Known:")[0].strip()
                or "Take it out, or use the transformers that it was written for.",
            )
