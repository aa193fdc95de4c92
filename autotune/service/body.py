"""The body of a request for a search: its fields and their limits."""

import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from autotune.core.errors import InvalidRequest, InvalidSpace, did_you_mean
from autotune.core.io import parse_json
from autotune.core.paths import named
from autotune.core.request import (
    LARGEST_GLOBAL_BATCH,
    MOST_DEVICES,
    OPTIONS,
    TuningRequest,
    is_switch,
    tuning_request,
)
from autotune.core.text import HIDDEN
from autotune.service.accounts import Caller
from autotune.service.devices import check_devices
from autotune.service.records import Forbidden
from autotune.service.roots import OPENED, Roots
from autotune.space.build import parse_overrides
from autotune.space.file import InvalidYaml, named_spaces, open_space, read_yaml
from autotune.space.settings import SETTINGS
from autotune.study.limits import check_request

MOST_DEPTH = 32
MOST_SECONDS = 24 * 3600.0
MOST_SPACE_BYTES = 16 * 1024

TRAINING_ARGS = frozenset(
    """
    learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio weight_decay optim optim_args
    optim_target_modules adam_beta1 adam_beta2 adam_epsilon max_grad_norm label_smoothing_factor neftune_noise_alpha
    num_train_epochs max_steps seed data_seed full_determinism per_device_train_batch_size
    gradient_accumulation_steps auto_find_batch_size average_tokens_across_devices bf16 fp16 tf32 bf16_full_eval
    fp16_full_eval use_cache activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing
    gradient_checkpointing_kwargs torch_compile torch_compile_backend torch_compile_mode use_liger_kernel
    liger_kernel_config torch_empty_cache_steps dataloader_num_workers dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_drop_last dataloader_in_order
    remove_unused_columns label_names train_sampling_strategy group_by_length length_column_name ddp_backend
    ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_find_unused_parameters ddp_timeout fsdp do_train
    do_eval do_predict disable_tqdm logging_strategy logging_steps logging_first_step logging_nan_inf_filter
    eval_strategy eval_steps per_device_eval_batch_size prediction_loss_only save_strategy save_steps
    save_total_limit save_only_model load_best_model_at_end metric_for_best_model greater_is_better
    """.split()  # noqa: SIM905 (a list of them has ninety lines)
)
"""Fields of TrainingArguments that a request may state: none of them names a folder, a file, an address or code."""
NUMBERS = {setting.argument: setting for setting in SETTINGS.values() if any(type(x) is int for x in setting.values)}
"""Field of TrainingArguments -> the setting with its limits."""

RESOLVED = ("model", "dataset", "tokenizer")
"""Options whose names `Roots` resolves."""

_Name = Annotated[str, Field(min_length=1, max_length=300)]
_Opened = Annotated[str, Field(min_length=1, max_length=300, json_schema_extra={"pattern": OPENED})]
_Word = str | int | float | bool
_Amount = Annotated[str, Field(min_length=1, max_length=40)] | int | float

_Count = Annotated[int, Field(ge=1, le=MOST_DEVICES)] | Annotated[str, Field(pattern=r"^[1-9]\d?$")]
_Settings = dict[_Name, _Word] | list[_Name]
_OF_SERVER: Mapping[str, tuple[Any, Any]] = {
    "dataset": (
        _Opened | None,
        Field(None, description="Data below a root as team:corpus.jsonl, or a hub id if allowed."),
    ),
    "space": (str, Field("default", min_length=1, description="A shipped search space, or the text of one in YAML.")),
    "fix": (
        _Settings,
        Field({}, max_length=100, description="As {precision: bf16}, or precision=bf16."),
    ),
    "only": (
        dict[_Name, _Word | list[_Word]] | list[_Name],
        Field({}, max_length=100, description="As {precision: [fp32, bf16]}, or precision=fp32,bf16."),
    ),
    "device": (str, Field("auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", description="One of the server.")),
    "devices": (_Count | Literal["all"], Field(1, description="Alike GPUs, or shares of a CPU.")),
    "n_trials": (int, Field(20, ge=1, le=200, description=OPTIONS["n_trials"].help)),
    "timeout": (_Amount | None, Field(None, description="Of the whole search; at most 24h.")),
    "args": (
        dict[_Name, _Word | list[str] | dict[_Name, _Word | None] | None],
        Field({}, max_length=100, description="Fields of your own TrainingArguments."),
    ),
}
"""Option -> type and field, if a server takes it otherwise than `autotune.search`."""


def _field(name: str) -> tuple[Any, Any]:
    """Type and field of an option."""
    if name in _OF_SERVER:
        return _OF_SERVER[name]
    option: Any = OPTIONS[name]
    kind: Any = _Opened if name == "tokenizer" else _Name
    limits: dict[str, Any] = {"ge": option.least, "le": option.most} if option.least is not None else {}
    if option.unit:
        kind = _Amount
    elif limits or is_switch(name):
        kind = int if limits else bool
    elif option.choices:
        kind = Literal[option.choices]
    kind = kind | None if option.default is None else kind
    return kind, Field(option.default, description=option.help, **limits)


_FIELDS: dict[str, Any] = {name: _field(name) for name, option in OPTIONS.items() if not option.local}
_Options: Any = create_model("_Options", **_FIELDS)


class SearchBody(_Options):  # type: ignore[misc]
    """A search to be run: options of `autotune search`, under their names in Python."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: _Opened = Field(description="A built-in model, one below a root as team:llama-8b, or a hub id if allowed.")
    global_batch_size: int = Field(ge=1, le=LARGEST_GLOBAL_BATCH)
    card: str = Field("", max_length=100, description="Part of the name of a GPU that it must be, such as H100.")
    name: str = Field("", max_length=120)
    priority: int = Field(0, ge=-100, le=100, description="Above 0 for admins only.")

    @field_validator("name")
    @classmethod
    def _printable(cls, name: str) -> str:
        if hidden := [letter for letter in name if unicodedata.category(letter) in HIDDEN]:
            values = {"character": ascii(hidden[0])}
            raise PydanticCustomError("hidden", "Leave out the invisible character {character}.", values)
        return name

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Names the nearest field of an unknown one."""
        try:
            return handler(data)
        except ValidationError as error:
            errors = [_with_nearest(entry, cls.model_fields) for entry in error.errors()]
            raise ValidationError.from_exception_data(cls.__name__, errors) from None


def _with_nearest(error: ErrorDetails, names: Iterable[str]) -> InitErrorDetails:
    """The error; of an unknown field with its name and the nearest one."""
    message = error["msg"]
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        nearest = [f" Did you mean {close!r}?" for close in get_close_matches(name, names, n=1, cutoff=0.5)]
        message = f"There is no field {name[:80]!r}.{''.join(nearest)}"
    kind = PydanticCustomError(error["type"], "{message}", {"message": message})
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])


def parse_body(content: bytes) -> Any:
    """Plain data of JSON; raises ValueError if it is invalid, too deep, or holds values that cannot be stored or sent again."""
    data = parse_json(content)
    _check_plain(data, MOST_DEPTH)
    return data


def _check_plain(data: Any, depth: int) -> None:
    if isinstance(data, float) and not math.isfinite(data):
        raise ValueError("a number is not finite")
    if isinstance(data, str) and ("\0" in data or any("\ud800" <= letter <= "\udfff" for letter in data)):
        raise ValueError("a string holds NUL or an unpaired surrogate")
    if isinstance(data, (dict, list)):
        if not depth:
            raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
        for part in (*data, *data.values()) if isinstance(data, dict) else data:
            _check_plain(part, depth - 1)


def checked(body: SearchBody, roots: Roots, caller: Caller, cards: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The request as it is stored: plain data with names, no paths. Raises InvalidRequest for a body that no search can have.

    cards: of the lent devices (name -> card). Checks everything that needs no opened model; nothing heavy is imported.
    """
    if cards is not None:
        check_devices(body.model_dump(), cards, caller.most_devices)
    if body.priority > 0 and not caller.may("admin"):
        raise Forbidden("Only admins may give a priority above 0.", "Leave it out.", "priority")
    _check_args(body.args)
    request: dict[str, Any] = body.model_dump(mode="json", exclude_defaults=True) | {"device": body.device}
    paths: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = job_of(request, roots, Path(folder), body.device)
            paths = {options[name]: str(request[name]) for name in RESOLVED if name in options}
            for name in ("study_name", "trust_remote_code"):
                options.pop(name)
            tuned = tuning_request(**options, executor=roots.executor)
            _check_settings(tuned)
            check_request(tuned)
        except InvalidRequest as error:
            message, advice, option = error.args
            if isinstance(error, InvalidSpace):
                message, option = message.replace(os.path.join(folder, "space.yaml:"), "line "), "space"
            for path, name in paths.items():
                message, advice = message.replace(path, name), advice.replace(path, name)
            raise InvalidRequest(message, advice, option) from error
    for name, seconds in (("timeout", tuned.timeout_s), ("probe_timeout", tuned.probe_timeout_s)):
        if seconds is not None and seconds > MOST_SECONDS:
            raise InvalidRequest("A search may take 24 h at most.", option=name)
    return request


WORKERS = 32
"""Data loader workers that a search may have on any machine."""


def check_nodes(request: Mapping[str, Any], roots: Roots, unreadable: Callable[[str], list[str]]) -> None:
    """Raise InvalidRequest for a model or data that a node cannot read. unreadable: path -> names of such nodes."""
    for what in RESOLVED:
        path = roots.resolved(what, request[what]) if what in request else ""
        if os.path.isabs(path) and (nodes := unreadable(path)):
            message = f"{', '.join(nodes)} cannot read {request[what]!r}, or did not answer."
            raise InvalidRequest(message, "Put it into a folder that every node has at the same path.", what)


def job_of(request: Mapping[str, Any], roots: Roots, folder: Path, device: str) -> dict[str, Any]:
    """Arguments of `autotune.commands.search.search` for a stored request, with the paths as they are now.

    folder: of the search, into which an inline space is written. Raises InvalidRequest if a name is not valid any more.
    """
    options = {name: value for name, value in request.items() if name not in ("name", "priority", "card")}
    for name in RESOLVED:
        if name in options:
            try:
                options[name] = roots.resolved(name, options[name])
            except InvalidRequest as error:
                raise InvalidRequest(error.message, error.advice, name) from error
            if not os.path.isabs(options[name]) and os.path.lexists(folder / options[name]):
                raise InvalidRequest(f"{options[name]!r} is a file of the search.", "Name a model or data.", name)
    space = options.get("space", "default")
    if space not in named_spaces():
        _check_space(space)
        file = folder / "space.yaml"
        file.write_text(space, encoding="utf-8")
        options["space"] = str(file)
    # Its name in advice, and that of the folder into which a client fetches it.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", request.get("name") or named(options["model"])).strip("-.")[:80]
    study = f"{name or 'search'}-{folder.name[-8:]}"
    return options | {"device": device, "output_dir": str(folder), "study_name": study, "trust_remote_code": False}


def _check_space(text: str) -> None:
    """Raise InvalidRequest for an inline space that is too long or repeats parts by aliases."""
    if not re.search(r"[\n:]", text):
        raise InvalidRequest(f"There is no search space {text[:80]!r}.", did_you_mean(text, named_spaces()), "space")
    if len(text.encode()) > MOST_SPACE_BYTES:
        raise InvalidRequest("It has more than 16 KiB.", "Name fewer values.", "space")
    try:
        read_yaml(text, aliases=False)
    except InvalidYaml as error:
        raise InvalidRequest(f"It is no valid YAML: {error}.", option="space") from error


def _check_args(args: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a field that is not allowed, and for values that could be paths."""
    for name, value in args.items():
        if name not in TRAINING_ARGS:
            advice = f"Leave it out. {did_you_mean(name, TRAINING_ARGS)}"
            raise InvalidRequest(f"A search of this server takes no field {name!r}.", advice, "args")
        if name in NUMBERS and value is not None:
            try:
                NUMBERS[name].read(value)
            except ValueError as error:
                raise InvalidRequest(f"{name}: {error}.", option="args") from error
            if NUMBERS[name] is SETTINGS["workers"]:
                _check_workers("args", [value])
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and re.search(r"[/\\{~]", text) for text in values):
            raise InvalidRequest(f"{name} may not be a path, or JSON within a text.", option="args")


def _check_settings(request: TuningRequest) -> None:
    """Raise InvalidRequest for a value of a setting that names a path, and for more workers than any training can use.

    A search reads and writes no other files than the server's, which other searches share.
    """
    overrides = parse_overrides(request)
    fixed = {name: (value,) for name, value in overrides.fixed.items()}
    for option, settings in (("fix", fixed), ("only", overrides.only), ("space", open_space(request.space).values)):
        for name, values in settings.items():
            if paths := [value for value in values if isinstance(value, str) and re.search(r"[/\\~]", value)]:
                message = f"{name}: {paths[0][:80]!r} names a path on the server's disks, and a search may not."
                raise InvalidRequest(message, "Leave it out.", option)
            if name == "workers" and (option != "space" or request.space not in named_spaces()):
                _check_workers(option, values)


def _check_workers(option: str, values: Iterable[Any]) -> None:
    most = max(WORKERS, 2 * (os.cpu_count() or 1))
    if wrong := [value for value in values if int(value) > most]:
        raise InvalidRequest(f"workers: {wrong[0]}, and a search of this server may have {most}.", option=option)
