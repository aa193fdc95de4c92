"""Options of a search, each declared once, and the request that they make.

It is checked as far as it can be without opening the model, the data or the device.
"""

import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, ParamSpec, Protocol, Self, TypeAlias, TypedDict, TypeVar, get_args

from autotune.core.configuration import Value
from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import Serializable
from autotune.core.paths import HIDDEN
from autotune.core.units import NotReadable, parse_bytes, parse_seconds, parse_share, shortened

TASKS = (
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "question-answering",
    "image-classification",
)
SAMPLERS = ("physics", "tpe", "gp", "random", "qmc", "brute-force")
LOGGERS = ("tensorboard", "wandb", "mlflow", "trackio")
EXECUTORS = ("local", "ray")
OBJECTIVES = ("samples_per_second", "tokens_per_second")
CONFIRMATION_ROUNDS = 2
"""Pairs of measurements of the fastest and of the user's settings that a speed-up needs at least."""
VERIFICATION_SECONDS = 30.0
"""Timed steps of each side of a verification take so long in all."""

EXPLANATION_ROUNDS = 3
"""Smallest number of measurements of each configuration when each setting's share is measured."""
MOST_ROUNDS = 20
"""Largest number of confirmation rounds; a larger one is refused as a typing error."""
MOST_DEVICES = 1024
"""Largest number of devices of a search; a larger one is refused as a typing error."""
MOST_TRIALS = 100_000
"""Largest number of trials of a search; a larger one is refused as a typing error."""
LONGEST_S = 30 * 24 * 3600.0
"""A longer time limit is refused as a typing error."""
LARGEST_GLOBAL_BATCH = 2**20
"""Size above which one optimizer step of any model takes longer than a search should; refused as a typing error."""
LARGEST_SEED = 2**31 - 1
"""numpy's generators take 32 bits, and a resumed study adds to its seed."""


READ: Mapping[str, Callable[[Any], Any]] = {"bytes": parse_bytes, "seconds": parse_seconds, "share": parse_share}
"""Unit -> function that reads its spellings; it raises ValueError."""
SUFFIX = {"bytes": "_bytes", "seconds": "_s"}
"""Unit -> end of the name of the request's field."""
IN_PYTHON = {"bytes": "As text or in bytes.", "seconds": "As text or in seconds.", "share": 'As "5%" or 0.05.'}


class TrainingArgumentsLike(Protocol):
    """`TrainingArguments`, or a class that inherits it: transformers is not imported to name it."""

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain data."""


UserArguments: TypeAlias = TrainingArgumentsLike | Mapping[str, Any] | str | os.PathLike[str] | None
"""The forms in which the user's own arguments may be given."""

Name: TypeAlias = str | os.PathLike[str]
Settings: TypeAlias = Mapping[str, Any] | Iterable[str] | None


@dataclass(frozen=True)
class Option:
    """Declaration of an option; its name and type are those of its line in `SearchOptions`.

    help: a sentence. panel: of `--help`. default: in Python. default_text: description of a default that the value does not
    tell. metavar: word for the value. unit: bytes, seconds or share, in which the request holds it. choices: the words that it
    may be. least, most: of a whole number. flag: on the command line; by default
    `--NAME`. field: of the request; by default the name and the unit's suffix, "" if the request does not hold it. local: advice
    for who gives it to a server, which takes no such option.
    """

    help: str
    panel: str
    default: Any = None
    default_text: str = ""
    metavar: str = ""
    unit: Literal["", "bytes", "seconds", "share"] = ""
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    flag: str = ""
    field: str | None = None
    local: str = ""

    def described(self, kind: Any) -> str:
        """Help in Python's documentation. kind: the option's type."""
        words = self.default_text or ("" if self.default in (None, False) else repr(self.default))
        texts = "As a mapping, or as NAME=VALUE texts." if kind == Settings else ""
        default = f"By default {words}." if words else ""
        return " ".join(filter(None, (self.help, texts, IN_PYTHON.get(self.unit, ""), default)))


# A table of options: a line or two each.
# fmt: off

class ModelOptions(TypedDict, total=False):
    """Options of every command that reads a model."""

    task: Annotated[str | None, Option(
        "Task, as causal-lm or masked-lm.", "Workload", default_text="from the model's config", metavar="TASK",
        choices=TASKS)]
    sequence_length: Annotated[int | None, Option(
        "Tokens in the longest sample.", "Workload", default_text="512, or the most the model takes", least=1,
        most=2**22)]
    headroom: Annotated[str | float, Option(
        "Share of the memory limit that must stay free.", "Limits", default=0.05, metavar="PERCENT", unit="share")]
    trust_remote_code: Annotated[bool, Option(
        "Run code that comes with the model.", "Advanced", default=False,
        local="A server runs no code that comes with a model.")]


class DataOptions(TypedDict, total=False):
    """The data that a model is trained on."""

    dataset: Annotated[Name | None, Option(
        "File or folder (txt, csv, jsonl, parquet), or a hub id.", "Workload", default_text="random tokens",
        metavar="PATH|HUB_ID")]
    dataset_split: Annotated[str, Option("Split of the dataset.", "Workload", default="train", metavar="NAME")]
    text_column: Annotated[str | None, Option(
        "Column with the text, or A,B for a pair.", "Workload", default_text="the only text, or by name",
        metavar="NAME")]
    label_column: Annotated[str | None, Option(
        "Column with the label.", "Workload", default_text="by name", metavar="NAME")]
    tokenizer: Annotated[Name | None, Option(
        "Name or folder.", "Workload", default_text="the model's, else trained on the dataset", metavar="PATH|HUB_ID")]


class ArgsOption(TypedDict, total=False):
    """The user's own TrainingArguments."""

    args: Annotated[UserArguments, Option(
        "Your TrainingArguments, JSON or YAML: the baseline.", "Workload", metavar="FILE", field="training_args")]


class SpaceOptions(TypedDict, total=False):
    """Settings to vary."""

    space: Annotated[Name, Option(
        "Search space: a name from `autotune search-spaces`, or a YAML file.", "What to vary", default="default",
        metavar="NAME|FILE", flag="--search-space")]
    fix: Annotated[Settings, Option("Fix a setting at this value. Repeatable.", "What to vary", metavar="NAME=VALUE")]
    only: Annotated[Settings, Option(
        "Try only these values of a setting. Repeatable.", "What to vary", metavar="NAME=A,B")]
    keep_numerics: Annotated[bool, Option(
        "Do not change what the model learns (precision, optimizer, ...).", "What to vary", default=False)]


class DeviceOption(TypedDict, total=False):
    """The device."""

    device: Annotated[str, Option("Device: auto, cpu, cuda or cuda:1.", "Limits", default="auto", metavar="NAME")]


class TrialOptions(TypedDict, total=False):
    """Options of commands that train."""

    memory_limit: Annotated[str | int | None, Option(
        "Memory the training may use, as 24GiB.", "Limits", default_text="what is free", metavar="SIZE", unit="bytes")]
    probe_timeout: Annotated[str | float | None, Option(
        "Time limit of one trial.", "Advanced", default_text="10 x the first one's time, at least 60 s",
        metavar="DURATION", unit="seconds")]
    output_dir: Annotated[Name, Option(
        "Folder of the report folders.", "Output", default="reports", metavar="PATH",
        local="Name the folder when you fetch the result.")]


class LoopOptions(TypedDict, total=False):
    """Options of a search, beside what it is about."""

    require_parity: Annotated[bool, Option(
        "Accept only configurations whose losses are shown to match fp32's.", "What to vary", default=False)]
    allow_loss_difference: Annotated[bool, Option(
        "Accept configurations whose losses differ from fp32's.", "What to vary", default=False)]
    objective: Annotated[str, Option(
        "Objective: samples_per_second or tokens_per_second.", "What to vary", default="samples_per_second",
        metavar="NAME", choices=OBJECTIVES)]
    n_trials: Annotated[int, Option(
        "Configurations to try at most, yours included.", "Limits", default=20, least=1, most=MOST_TRIALS)]
    timeout: Annotated[str | float | None, Option(
        "Time limit of the whole command, as 90s, 10m or 1h.", "Limits", metavar="DURATION", unit="seconds")]
    training_steps: Annotated[int | None, Option(
        "Steps of your real run: stop when more searching no longer pays off.", "Limits",
        default_text="two hours of training", least=1, most=10**12)]
    study_name: Annotated[str | None, Option(
        "Name of the study.", "Output", default_text="MODEL-TASK-gbN-DEVICE", metavar="NAME",
        local="Name the search with name=, or leave it out.")]
    fresh: Annotated[bool, Option(
        "Discard the existing study and start again.", "Output", default=False, field="",
        local="Every search on a server starts anew.")]
    report_to: Annotated[str | Iterable[str] | None, Option(
        "Loggers: tensorboard, wandb, mlflow or trackio. Repeatable, or with commas.", "Output", metavar="NAME",
        local="Log the fetched study with `autotune report STUDY --report-to NAME`.")]
    sampler: Annotated[str, Option(
        "Sampler: physics, tpe, gp, random, qmc or brute-force.", "Advanced", default="physics", metavar="NAME",
        choices=SAMPLERS)]
    margin: Annotated[str | float, Option(
        "Stop when no more than this share is left to gain (sampler physics).", "Advanced", default=0.01,
        metavar="PERCENT", unit="share")]
    confirmation_rounds: Annotated[int, Option(
        "Pairs of measurements of the fastest and of your settings that a speed-up needs at the least.",
        "Advanced", default=CONFIRMATION_ROUNDS, least=CONFIRMATION_ROUNDS, most=MOST_ROUNDS)]
    seed: Annotated[int, Option("Seed of the sampler.", "Advanced", default=0, least=0, most=LARGEST_SEED)]
    no_history: Annotated[bool, Option(
        "Do not use results of past searches on this device.", "Advanced", default=False)]
    no_risk: Annotated[bool, Option(
        "Do not try what may run out of memory once something fits.", "Advanced", default=False)]
    devices: Annotated[int | str, Option(
        "Devices that measure side by side: GPUs, or shares of a CPU's cores.", "Several devices", default=1,
        metavar="N|all", choices=("all",), least=1, most=MOST_DEVICES)]
    cores_per_device: Annotated[int | None, Option(
        "CPU cores of each of several devices.", "Several devices", default_text="an equal share", least=1, most=10**4)]
    executor: Annotated[str, Option(
        "Whose devices: this machine's (local), or those of the Ray cluster at RAY_ADDRESS.", "Several devices",
        default="local", metavar="local|ray", choices=EXECUTORS, local="The server lends devices of its own machine.")]
    allow_unauthenticated: Annotated[bool, Option(
        "Use a Ray cluster on which everyone who reaches it can run programs.", "Several devices", default=False,
        local="It is of Ray clusters.")]


class SearchOptions(
    DeviceOption, TrialOptions, ModelOptions, DataOptions, ArgsOption, SpaceOptions, LoopOptions, total=False
):
    """Options of `autotune search`, of `autotune.search` and of a server's search, beside model and global batch size."""


class TuneOptions(TrialOptions, ModelOptions, SpaceOptions, LoopOptions, total=False):
    """Options of `autotune.tune`: model, data and arguments are the Trainer's."""

    device: Annotated[str | None, Option(
        "Device: auto, cpu, cuda or cuda:1.", "Limits", default_text="the Trainer's", metavar="NAME")]


class GuideOptions(DeviceOption, TrialOptions, ModelOptions, DataOptions, total=False):
    """Options of `autotune guide`."""

    ladder: Annotated[str | None, Option(
        "Ladder: of the Hugging Face guides (2022), or of what trains fast today (2026).", "Limits",
        default_text="2022", metavar="YEAR", choices=("2022", "2026"), field="")]

class EstimateOptions(ModelOptions, DataOptions, ArgsOption, SpaceOptions, total=False):
    """Options of `autotune estimate`."""

    memory_limit: Annotated[str | int | None, Option(
        "Memory of the device to estimate for, as 24GiB.", "Limits", metavar="SIZE", unit="bytes")]
    gpu: Annotated[str | None, Option(
        "GPU to estimate for, as V100, 4090 or H100. It need not be in this machine.", "Limits", metavar="NAME",
        field="")]
    device: Annotated[str, Option(
        "Device: cuda, or cpu for the bytes that a training on the CPU allocates.", "Limits", default="cuda",
        metavar="NAME")]
    ranks: Annotated[int | None, Option(
        "GPUs that train together, one rank each; --fix fsdp=full_shard or zero=2 divides the model between them.",
        "Limits", default_text="as the search space has it", least=1, most=MOST_DEVICES, field="")]

# fmt: on


def options_of(kind: type) -> dict[str, tuple[Any, Option]]:
    """Name -> (type in Python, declaration) of each option of one of the classes above."""
    return {name: get_args(annotated) for name, annotated in kind.__annotations__.items()}


OPTIONS: Mapping[str, Option] = {name: option for name, (_, option) in options_of(SearchOptions).items()}
"""Options of a search."""


def field_of(name: str) -> str:
    """The field of a request that holds this option; empty for an option that it does not hold."""
    option = OPTIONS[name]
    return f"{name}{SUFFIX.get(option.unit, '')}" if option.field is None else option.field


def flag_of(name: str) -> str:
    """The option on the command line."""
    declared = OPTIONS[name].flag if name in OPTIONS else ""
    return declared or f"--{name.replace('_', '-')}"


def is_switch(name: str) -> bool:
    """True if the option takes no value on the command line."""
    return name in OPTIONS and OPTIONS[name].default is False


def _check_names(given: Iterable[str], names: Iterable[str]) -> None:
    if unknown := [name for name in given if name not in names]:
        raise InvalidRequest(f"There is no option {unknown[0]!r}.", did_you_mean(unknown[0], names))


Taken = ParamSpec("Taken")
Result = TypeVar("Result")


def accepts(kind: type) -> Callable[[Callable[Taken, Result]], Callable[Taken, Result]]:
    """Decorator of a function whose last parameter is `**options: Unpack[kind]`.

    Its signature and the `{options}` of its docstring show each option, and others raise InvalidRequest.
    """

    def declare(function: Callable[Taken, Result]) -> Callable[Taken, Result]:
        signature, options = inspect.signature(function), options_of(kind)
        *first, _ = signature.parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = [
            inspect.Parameter(name, keyword, default=option.default, annotation=annotation)
            for name, (annotation, option) in options.items()
        ]
        names = [parameter.name for parameter in (*first, *shown)]

        @wraps(function)
        def checked(*args: Taken.args, **kwargs: Taken.kwargs) -> Result:
            _check_names(kwargs, names)
            return function(*args, **kwargs)

        texts = [f"{name}: {option.described(annotation)}" for name, (annotation, option) in options.items()]
        lines = [fill(text, 116, initial_indent=" " * 8, subsequent_indent=" " * 12) for text in texts]
        checked.__doc__ = (function.__doc__ or "").replace("        {options}", "\n".join(lines))
        checked.__signature__ = signature.replace(parameters=[*first, *shown])  # type: ignore[attr-defined]
        return checked

    return declare


@dataclass(frozen=True, kw_only=True)
class TuningRequest(Serializable):
    """Request of a search; build it with `tuning_request()`, which reads and checks users' spellings.

    A field of an option of `SearchOptions` has its name and its unit's suffix: bytes, seconds, shares of 1.
    """

    model: str
    global_batch_size: int
    task: str | None
    sequence_length: int | None
    dataset: str | None
    dataset_split: str
    text_column: str | None
    label_column: str | None
    tokenizer: str | None
    training_args: Mapping[str, Any]  #: the user's, those that differ from the defaults
    space: str
    fix: Mapping[str, Value]
    only: Mapping[str, tuple[Value, ...]]
    keep_numerics: bool
    require_parity: bool
    allow_loss_difference: bool
    objective: str
    device: str
    memory_limit_bytes: int | None
    headroom: float
    n_trials: int
    timeout_s: float | None
    training_steps: int | None
    study_name: str | None
    output_dir: str
    report_to: tuple[str, ...]
    sampler: str
    margin: float
    confirmation_rounds: int
    probe_timeout_s: float | None
    seed: int
    no_history: bool
    no_risk: bool
    trust_remote_code: bool
    devices: int | str
    cores_per_device: int | None
    executor: str
    allow_unauthenticated: bool

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The request that `to_dict` made plain; an option that it does not hold has its default."""
        return super().from_dict({**DEFAULTS, **data})

    def study_folder(self, task: str, device: str) -> Path:
        """`<output-dir>/<study>`."""
        return Path(self.output_dir) / self.name_of_study(task, device)

    def name_of_study(self, task: str, device: str) -> str:
        """The study name of the request, by default `<model>-<task>-gb<N>-<device>`."""
        default = f"{self.model_name}-{task}-gb{self.global_batch_size}-{device.replace(':', '')}"
        return self.study_name or default

    @property
    def model_name(self) -> str:
        """The model's name as a part of a folder's name."""
        path = Path(self.model)
        # `small` of configs/small.json, a hub id as it is
        is_local = path.is_absolute() or self.model.startswith(HIDDEN) or os.path.exists(self.model)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.name.removesuffix(".json") if is_local else self.model)
        return name.strip("-.")[:80] or "model"


def tuning_request(model: Name, global_batch_size: int, **options: Any) -> TuningRequest:
    """The request of users' spellings (`600MiB`, `5%`, `10m`, `precision=bf16`), checked.

    Args:
        model: Name of a model, as `autotune.search` takes it.
        global_batch_size: Samples of an optimizer step.
        **options: As of `SearchOptions`; of `args` the fields alone.

    Raises:
        InvalidRequest: A value cannot be meant, or two options contradict each other.
    """
    _check_names(options, OPTIONS)
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(model, str) or not model.strip() or "\0" in model:
        advice = "Name a built-in model, a folder, a config JSON or a hub id."
        raise InvalidRequest("The model is missing.", advice, "model")
    values = {field_of(name): _read(name, value) for name, value in options.items() if field_of(name)}
    size = _whole("global_batch_size", global_batch_size, 1, LARGEST_GLOBAL_BATCH)
    request = TuningRequest(model=model, global_batch_size=size, **{**DEFAULTS, **values})
    _check(request)
    return request


def _read(name: str, value: Any) -> Any:
    """The option's value as the request holds it."""
    option = OPTIONS[name]
    if name == "fix":
        return _assignments(name, value)
    if name == "only":
        return {setting: _several(setting, values) for setting, values in _assignments(name, value).items()}
    if name == "report_to":
        return loggers_named(value)
    if name == "args":
        return dict(value or {})
    if value is None and option.default is None:
        return None
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if option.unit:
        return _amount(name, option.unit, value)
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise InvalidRequest(f"{value!r} is empty.", f"Pass {option.metavar}, or omit it.", name)
    if option.choices and value in option.choices:
        return value
    if option.least is not None:
        number = int(value) if option.choices and isinstance(value, str) and value.isdigit() else value
        return _whole(name, number, option.least, option.most)
    if option.choices:
        raise InvalidRequest(f"There is no {name} {value!r}.", did_you_mean(value, option.choices), name)
    if option.default is not False and not isinstance(value, str):
        advice = f"Pass {option.metavar}, or omit it."
        raise InvalidRequest(f"It takes text, not {type(value).__name__}.", advice, name)
    return value


def _check(request: TuningRequest) -> None:
    """Raise InvalidRequest for options that contradict each other, and for names that cannot be."""
    if request.require_parity and request.allow_loss_difference:
        message = "It is the opposite of --allow-loss-difference."
        raise InvalidRequest(message, "Pass only one of them.", "require_parity")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(request.device)):
        raise InvalidRequest(f"There is no device {request.device!r}.", "Use auto, cpu, cuda or cuda:0.", "device")
    if both := sorted(set(request.fix) & set(request.only)):
        raise InvalidRequest(f"--only names {both[0]} too.", "Use --fix for one value, --only for several.", "fix")
    for name in ("text_column", "label_column", "tokenizer", "dataset_split"):
        value = getattr(request, name)
        if value not in (None, "train") and not request.dataset:
            raise InvalidRequest(f"{value!r} needs a --dataset.", "Name the data, or omit it.", name)
    study = request.study_name
    if study is not None and (not re.fullmatch(r"\w[\w.-]*", str(study)) or len(study.encode()) > 120):
        raise InvalidRequest(
            f"{shortened(study)} cannot be a study's name: it names a folder.",
            "Use up to 120 letters, digits, dots, dashes and underscores.",
            "study_name",
        )


def _whole(name: str, value: Any, least: int, most: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(f"It must be a whole number from {least}, not {shortened(value)}.", option=name)
    if most is not None and value > most:
        raise InvalidRequest(f"{shortened(value)} is above {most}.", "Check for a digit too many.", name)
    return value


def _amount(name: str, unit: str, value: Any) -> Any:
    try:
        amount = READ[unit](value)
    except NotReadable as error:
        raise InvalidRequest(f"{error.cause}.", error.advice, name) from error
    if unit == "seconds" and amount > LONGEST_S:
        message = f"{shortened(value)} is more than {LONGEST_S / 86400:.0f} days."
        raise InvalidRequest(message, "Check its unit, or omit it.", name)
    return amount


def loggers_named(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Loggers of `wandb,mlflow` or ['wandb', 'mlflow'], each once; `none` names none. Raises InvalidRequest."""
    texts = [given] if isinstance(given, str) else given or ()
    words = dict.fromkeys(word.strip() for text in texts for word in str(text).split(",") if word.strip())
    if unknown := [word for word in words if word not in (*LOGGERS, "none")]:
        raise InvalidRequest(f"There is no logger {unknown[0]!r}.", did_you_mean(unknown[0], (*LOGGERS, "none")))
    loggers = tuple(word for word in words if word != "none")
    if "none" in words and loggers:
        raise InvalidRequest(f"--report-to says none and {', '.join(loggers)}.", "Pass only one of them.")
    return loggers


def _assignments(option: str, given: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """{'precision': 'bf16'} of {'precision': 'bf16'} or of ['precision=bf16']."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    pairs: dict[str, Any] = {}
    for text in [given] if isinstance(given, str) else given:
        name, equals, value = str(text).partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not value.strip():
            raise InvalidRequest(f"{text!r} is not a NAME=VALUE.", f"Write --{option} precision=bf16.", option)
        if pairs.setdefault(name, value.strip()) != value.strip():
            message = f"{name} is given twice: {pairs[name]} and {value.strip()}."
            raise InvalidRequest(message, "Pass only one of them.", option)
    return pairs


def _several(name: str, values: Any) -> tuple[Value, ...]:
    if isinstance(values, str):
        values = [part.strip() for part in values.split(",") if part.strip()]
    if isinstance(values, (set, frozenset)):  # in another order in each process, and so another search space
        values = sorted(values, key=str)
    several = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not several:
        raise InvalidRequest(f"It names no value of {name}.", f"Write --only {name}=A,B.", "only")
    return several


def check_installed(names: tuple[str, ...]) -> None:
    """Raise InvalidRequest if the library of one of these loggers is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InvalidRequest(
                f"--report-to={name} needs a library that is not installed.", f"pip install 'hf-autotune[{name}]'"
            )


DEFAULTS: Mapping[str, Any] = {
    field_of(name): _read(name, option.default) for name, option in OPTIONS.items() if field_of(name)
}
"""Field of a request -> its value if its option is not given."""
