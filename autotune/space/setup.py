"""Training setup: a configuration in Hugging Face's names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.configuration import Configuration, Value, word
from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest, nearest_choice
from autotune.core.note import Note, NoteKind
from autotune.space.settings import SETTINGS, Effect
from autotune.space.settings.checkpointing import OPTIONS, as_newer, field_name
from autotune.space.settings.micro_batch_size import divisors
from autotune.space.variables import joined

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

BATCH_FIELDS = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Training arguments that are the samples of a step on each rank, as their product."""

FINDER = "auto_find_batch_size"
"""Argument that would catch an out-of-memory and shrink the batch; dropped from probes and answer."""


LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun and the like set for each rank."""


@dataclass(frozen=True)
class TrainingSetup:
    """All that a training with a configuration is started with, in Hugging Face's names; empty: nothing but the defaults."""

    training_arguments: Mapping[str, Any] = field(default_factory=dict)  # TrainingArguments(output_dir=..., **fields)
    model_arguments: Mapping[str, Any] = field(default_factory=dict)  # AutoModelForX.from_pretrained(name, **fields)
    data_arguments: Mapping[str, Any] = field(default_factory=dict)  # how samples become a batch: see `Effect`
    adapter: Mapping[str, Any] = field(default_factory=dict)  # of peft.LoraConfig; empty: all weights are trained
    switches: Mapping[str, bool] = field(default_factory=dict)  # functions of torch.backends.cuda -> their argument
    process_environment: Mapping[str, str] = field(default_factory=dict)  # variables of the training process
    host_environment: Mapping[str, str] = field(default_factory=dict)  # those that it must be started with
    processes: int = 1  # that the launcher must start, one a rank

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables to set before the training starts; mostly none."""
        return {**self.host_environment, **self.process_environment}


def training_setup(
    configuration: Configuration, environment: Environment, base: Mapping[str, Any], task: str = ""
) -> TrainingSetup:
    """The setup of a configuration: the same for what a probe runs and for the answer.

    Its training arguments hold micro-batch size, accumulation and every field of every setting, at its default or not, `use_cpu`
    on a CPU, and what else the user set in `base` (fields that differ from the defaults). The user's own values in a variable
    are kept; those variables that the launcher of several ranks sets for each are left out.

    Raises InvalidRequest if the configuration holds a setting or a value that this version does not know.
    """
    effect = _effect(configuration, environment)
    left_out = LAUNCHERS if effect.processes > 1 else ()
    variables = {name: value for name, value in effect.environment.items() if name not in left_out}
    return TrainingSetup(
        training_arguments=_training_arguments(configuration, effect, environment, base),
        model_arguments={"dtype": "float32", **effect.model_arguments},
        data_arguments=effect.data_arguments,
        adapter=_adapter(effect, task),
        switches=effect.switches,
        process_environment=_with_user_values(variables, environment),
        host_environment=_with_user_values(effect.host, environment),
        processes=max(1, effect.processes),
    )


def _training_arguments(
    configuration: Configuration, effect: Effect, environment: Environment, base: Mapping[str, Any]
) -> dict[str, Any]:
    own = as_newer(base) if field_name(environment) == "activation_checkpointing" else base
    fields = {name: value for name, value in own.items() if name not in (*PRIVATE, FINDER)}
    fields["gradient_accumulation_steps"] = configuration.gradient_accumulation_steps
    kwargs = f"{field_name(environment)}_kwargs"
    if kwargs in effect.training_arguments and isinstance(options := fields.get(kwargs), Mapping):
        # A value leaves out the options that it has at their defaults: the user's would make another value of it.
        fields[kwargs] = {name: option for name, option in options.items() if name not in OPTIONS}
    for name, value in effect.training_arguments.items():
        # None means: as the user has it, else the default.
        fields[name] = fields.get(name) if value is None else _joined(fields.get(name), value)
    for name in effect.contradicts:
        fields.pop(name, None)
    for name, value in effect.defaults.items():
        if fields.get(name) is None:
            fields[name] = value
    if environment.is_cpu:
        fields["use_cpu"] = True
    return fields


def _with_user_values(variables: Mapping[str, str], environment: Environment) -> dict[str, str]:
    return joined({name: value for name, value in environment.variables.items() if name in variables}, variables)


def _adapter(effect: Effect, task: str) -> dict[str, Any]:
    if not effect.adapter.get("r"):
        return {}
    task_type = {"task_type": TASK_TYPES[task]} if task in TASK_TYPES else {}
    return {"target_modules": ALL_LINEAR, **effect.adapter, **task_type}


_FIELDS = ("training_arguments", "model_arguments", "defaults", "data_arguments", "adapter", "switches")


def _effect(configuration: Configuration, environment: Environment) -> Effect:
    values = configuration.values
    # In the order of SETTINGS, however a space lists them: later ones may overrule what earlier ones set by the way.
    effects = [
        _applied(name, values[name], environment) for name in (*SETTINGS, *values.keys() - SETTINGS) if name in values
    ]
    merged: dict[str, dict[str, Any]] = {name: {} for name in _FIELDS}
    for name, fields in merged.items():
        for effect in effects:
            fields |= {key: _joined(fields.get(key), value) for key, value in getattr(effect, name).items()}
    return Effect(
        **merged,
        environment=joined(*(effect.environment for effect in effects)),
        host=joined(*(effect.host for effect in effects)),
        contradicts=tuple(name for effect in effects for name in effect.contradicts),
        processes=max(effect.processes for effect in effects),
    )


def _applied(name: str, value: Value, environment: Environment) -> Effect:
    """Effect of a value; raises InvalidRequest if setting or value belong to a study of another version."""
    try:
        return SETTINGS[name].apply(value, environment)
    except (KeyError, ValueError) as error:
        raise InvalidRequest(
            f"This version knows no {name} {word(value)}: the study was made by another version of autotune.",
            "Read it with that one; its table can be had with `autotune report STUDY --format csv`.",
        ) from error


def _joined(present: Any, value: Any) -> Any:
    """A dict joins the one that is there already; any other value takes its place."""
    return {**present, **value} if isinstance(present, Mapping) and isinstance(value, Mapping) else value


def baseline_sizes(global_batch_size: int, base: Mapping[str, Any], ranks: int = 1) -> tuple[int, list[Note]]:
    """The user's own micro-batch size made exact on n ranks, and a line saying so if it had to change.

    Their micro-batch if it divides each rank's part of the target, else the largest divisor below it. Raises
    InvalidRequest if the ranks do not divide the target, or if micro-batch and accumulation are stated with another
    product, or not as whole numbers.
    """
    of_each, rest = divmod(global_batch_size, ranks)
    if rest:
        raise InvalidRequest(
            f"{ranks} ranks cannot share a global batch of {global_batch_size} evenly.",
            "Choose a data-parallel size that divides it.",
        )
    for name in BATCH_FIELDS:
        if type(size := base.get(name, 1)) is not int or size < 1:
            raise InvalidRequest(f"Your arguments say {name}: {size!r}.", "Make it a whole number from 1.")
    asked, accumulation = base.get(BATCH_FIELDS[0], 8), base.get(BATCH_FIELDS[1], 1)
    if all(name in base for name in BATCH_FIELDS) and asked * accumulation != of_each:
        on_ranks = f" x {ranks} ranks" if ranks > 1 else ""
        raise InvalidRequest(
            f"Your arguments say {asked} x {accumulation}{on_ranks} = {asked * accumulation * ranks} samples a step, "
            f"the global batch size says {global_batch_size}.",
            "Make them agree, or leave gradient_accumulation_steps out of your arguments.",
        )
    size = max(divisor for divisor in divisors(of_each) if divisor <= asked)
    return size, [] if size == asked else [Note(NoteKind.MICRO_BATCH, {"requested": asked, "exact": size})]


def what_differs(base: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """The user's arguments without those that say what is the default anyway: a whole dump is as good as a few lines."""
    defaults = environment.training_argument_defaults
    return {name: value for name, value in base.items() if name not in defaults or defaults[name] != value}


def check_fields(base: Mapping[str, Any], environment: Environment, source: str) -> None:
    """Raise InvalidRequest if a field of the user's arguments is unknown to this transformers."""
    for name in base:
        if name not in environment.training_argument_fields:
            raise InvalidRequest(
                f"{source}: TrainingArguments of transformers {environment.versions.get('transformers')} "
                f"has no field {name!r}.",
                nearest_choice(name, environment.training_argument_fields)
                or "Take it out, or use the transformers that it was written for.",
            )
