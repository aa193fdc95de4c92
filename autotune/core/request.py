"""Request of a search, checked as far as it can be without opening the model, the data or the device."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.core.configuration import Value
from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import Serializable
from autotune.core.paths import HIDDEN
from autotune.core.units import parse_bytes, parse_seconds, parse_share, shortened

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
"""Measurements of the fastest and of the user's settings, side by side, that a speed-up needs at the least."""
EXPLANATION_ROUNDS = 3
"""Of each configuration at the least, where each setting's share is measured."""
MOST_ROUNDS = 20
"""Of a trial at the most; a larger number is refused as a typing error."""
MOST_DEVICES = 1024
"""Of one search; a larger number is refused as a typing error."""
MOST_TRIALS = 100_000
"""Of one search; a larger number is refused as a typing error."""
LONGEST_S = 30 * 24 * 3600.0
"""A longer time limit is refused as a typing error."""
LARGEST_GLOBAL_BATCH = 2**20
"""Above it one optimizer step of any model takes longer than a search should; refused as a typing error."""
LARGEST_SEED = 2**31 - 1
"""numpy's generators take 32 bits, and a resumed study adds to its seed."""

_SPELLINGS = {"memory_limit_bytes": "memory_limit", "timeout_s": "timeout", "probe_timeout_s": "probe_timeout"}
"""Fields whose option takes units and has another name."""
_TEXTS = {
    "dataset": "Name a file, a folder or a hub id, or leave it out for random tokens.",
    "dataset_split": "Name a split, such as train or train[:1000].",
    "text_column": "Name a column of the data, or leave it out.",
    "label_column": "Name a column of the data, or leave it out.",
    "tokenizer": "Name a tokenizer's folder or hub id, or leave it out.",
    "output_dir": "Name a folder, such as reports.",
    "task": f"Known: {', '.join(TASKS)}.",
}
"""Options that name something -> advice where they are empty."""


@dataclass(frozen=True, kw_only=True)
class TuningRequest(Serializable):
    """What a search is to find; build it with `tuning_request()`, which reads and checks users' spellings."""

    model: str
    global_batch_size: int
    task: str | None = None
    sequence_length: int | None = None
    dataset: str | None = None
    dataset_split: str = "train"
    text_column: str | None = None
    label_column: str | None = None
    tokenizer: str | None = None
    space: str = "default"
    fix: Mapping[str, Value] = field(default_factory=dict)  #: setting -> value
    only: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)  #: setting -> values
    device: str = "auto"
    devices: int | str = 1  #: how many devices measure side by side, or "all"
    cores_per_device: int | None = None  #: cores of each of several devices; None: an equal share
    executor: str = "local"  #: what the devices belong to: this machine, or by `ray` a Ray cluster
    allow_unauthenticated: bool = False  #: use a Ray cluster on which whoever reaches it can run programs
    memory_limit_bytes: int | None = None  #: bytes the training may use; None: what is free at the start
    headroom: float = 0.05  #: share of the limit that must stay free
    n_trials: int = 20  #: configurations, the baseline included
    timeout_s: float | None = None  #: seconds of the whole command
    probe_timeout_s: float | None = None  #: seconds of one probe; None: 10 x the baseline's, at least 60
    confirmation_rounds: int = CONFIRMATION_ROUNDS  #: of the fastest and the baseline side by side, at least
    sampler: str = "physics"
    margin: float = 0.01  #: `physics` stops once no untried configuration can gain a larger share
    training_steps: int | None = None  #: of the run to tune for; a search that cannot save its own time over them ends
    no_history: bool = False  #: ignore results of past searches on this device
    no_risk: bool = False  #: once something fits, probe nothing that may not (`physics` takes two such risks at most)
    keep_numerics: bool = False  #: settings that change what is learned stay at the user's own values
    objective: str = "samples_per_second"
    seed: int = 0
    training_args: Mapping[str, Any] = field(default_factory=dict)  #: the user's, those that differ from the defaults
    require_parity: bool = False  #: what the rounds do not show to train like fp32 cannot win
    allow_loss_difference: bool = False  #: what does not train like fp32 may win
    trust_remote_code: bool = False
    output_dir: str = "reports"
    study_name: str | None = None
    report_to: tuple[str, ...] = ()  #: loggers of the study, never of its probes

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


OPTIONS = tuple(
    _SPELLINGS.get(option.name, option.name)
    for option in fields(TuningRequest)
    if option.name not in ("model", "global_batch_size", "training_args")
)
"""Options of `tuning_request` besides the model, the global batch size and the user's own arguments."""


def tuning_request(
    model: str,
    global_batch_size: int,
    *,
    fix: Mapping[str, Any] | Iterable[str] | None = None,
    only: Mapping[str, Any] | Iterable[str] | None = None,
    memory_limit: str | int | None = None,
    headroom: str | float = 0.05,
    timeout: str | float | None = None,
    probe_timeout: str | float | None = None,
    margin: str | float = 0.01,
    report_to: str | Iterable[str] | None = None,
    **options: Any,
) -> TuningRequest:
    """The request of users' spellings (`600MiB`, `5%`, `10m`, `precision=bf16`), checked; raises InvalidRequest."""
    if unknown := [name for name in options if name not in (*OPTIONS, "training_args")]:
        raise InvalidRequest(f"There is no option {unknown[0]!r}.", did_you_mean(unknown[0], OPTIONS))
    if isinstance(devices := options.get("devices"), str) and devices.isdigit():
        options["devices"] = int(devices)
    options = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(model, str) or not model.strip() or "\0" in model:
        raise InvalidRequest("The model is missing.", "Name a built-in model, a folder, a config JSON or a hub id.")
    request = TuningRequest(
        model=model,
        global_batch_size=_whole("global batch size", global_batch_size, most=LARGEST_GLOBAL_BATCH),
        fix=_assignments("--fix", fix),
        only={name: _several(name, values) for name, values in _assignments("--only", only).items()},
        memory_limit_bytes=None if memory_limit is None else _read("memory limit", parse_bytes, memory_limit),
        headroom=_read("headroom", parse_share, headroom),
        margin=_read("margin", parse_share, margin),
        timeout_s=_limit("timeout", timeout),
        probe_timeout_s=_limit("probe timeout", probe_timeout),
        report_to=loggers_named(report_to),
        **options,
    )
    _check(request)
    return request


def _check(request: TuningRequest) -> None:
    for name, advice in _TEXTS.items():
        if isinstance(value := getattr(request, name), str) and (not value.strip() or "\0" in value):
            raise InvalidRequest(f"--{name.replace('_', '-')} {value!r} names nothing.", advice)
    _whole("number of trials", request.n_trials, most=MOST_TRIALS)
    if request.devices != "all":
        _whole("number of devices", request.devices, most=MOST_DEVICES)
    if request.cores_per_device is not None:
        _whole("number of cores per device", request.cores_per_device)
    _whole("number of confirmation rounds", request.confirmation_rounds, least=CONFIRMATION_ROUNDS, most=MOST_ROUNDS)
    if request.require_parity and request.allow_loss_difference:
        raise InvalidRequest("--require-parity and --allow-loss-difference are opposites.", "Pass only one of them.")
    _whole("seed", request.seed, least=0, most=LARGEST_SEED)
    for what, number in (
        ("number of training steps", request.training_steps),
        ("sequence length", request.sequence_length),
    ):
        if number is not None:
            _whole(what, number)
    for what, word, words in (
        ("task", request.task, TASKS),
        ("sampler", request.sampler, SAMPLERS),
        ("objective", request.objective, OBJECTIVES),
        ("executor", request.executor, EXECUTORS),
    ):
        if word is not None and word not in words:
            raise InvalidRequest(f"There is no {what} {word!r}.", did_you_mean(word, words))
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(request.device)):
        raise InvalidRequest(f"There is no device {request.device!r}.", "Use auto, cpu, cuda or cuda:0.")
    if both := sorted(set(request.fix) & set(request.only)):
        raise InvalidRequest(f"--fix and --only both name {both[0]}.", "Use --fix for one value, --only for several.")
    for name in ("text_column", "label_column", "tokenizer", "dataset_split"):
        value, option = getattr(request, name), f"--{name.replace('_', '-')}"
        if value not in (None, "train") and not request.dataset:
            raise InvalidRequest(f"{option} {value!r} needs a --dataset.", f"Name the data, or leave {option} out.")
    study = request.study_name
    if study is not None and (not re.fullmatch(r"\w[\w.-]*", str(study)) or len(study.encode()) > 120):
        raise InvalidRequest(
            f"{shortened(study)} cannot be a study's name: it names a folder.",
            "Use up to 120 letters, digits, dots, dashes and underscores.",
        )


def _whole(what: str, value: Any, most: int | None = None, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(f"The {what} must be a whole number from {least}, not {shortened(value)}.")
    if most is not None and value > most:
        raise InvalidRequest(f"The {what} is {shortened(value)}, above {most}.", "Check for a digit too many.")
    return value


def _limit(what: str, value: Any) -> float | None:
    """A time limit in seconds."""
    seconds: float | None = None if value is None else _read(what, parse_seconds, value)
    if seconds is not None and seconds > LONGEST_S:
        message = f"The {what} of {shortened(value)} is more than {LONGEST_S / 86400:.0f} days."
        raise InvalidRequest(message, "Check its unit, or leave it out.")
    return seconds


def _read(what: str, parse: Any, value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        cause, _, advice = str(error).partition("; ")
        raise InvalidRequest(
            f"The {what} cannot be read: {cause}.",
            f"{advice[:1].upper()}{advice[1:]}." if advice else "Check its size and unit.",
        ) from error


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
            raise InvalidRequest(f"{option} {text!r} is not a NAME=VALUE.", f"Write {option} precision=bf16.")
        if pairs.setdefault(name, value.strip()) != value.strip():
            message = f"{option} gives {name} twice: {pairs[name]} and {value.strip()}."
            raise InvalidRequest(message, "Pass only one of them.")
    return pairs


def _several(name: str, values: Any) -> tuple[Value, ...]:
    if isinstance(values, str):
        values = [part.strip() for part in values.split(",") if part.strip()]
    several = tuple(values) if isinstance(values, (list, tuple, set)) else (values,)
    if not several:
        raise InvalidRequest(f"--only names no value of {name}.", f"Write --only {name}=A,B.")
    return several


def check_installed(names: tuple[str, ...]) -> None:
    """Raise InvalidRequest where the library of one of these loggers is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InvalidRequest(
                f"--report-to={name} needs a library that is not installed.", f"pip install 'hf-autotune[{name}]'"
            )
