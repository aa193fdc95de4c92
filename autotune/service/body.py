"""The body of a request for a search: its fields and their limits, and the models and data that it may name."""

import math
import os
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from fastapi.exceptions import RequestValidationError
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

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.io import parse_json, read_json
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
from autotune.service.problems import ForbiddenField, InvalidField, InvalidFields, problem_of
from autotune.space.build import read_override
from autotune.space.file import InvalidYaml, named_spaces, open_space, read_yaml
from autotune.space.settings import SETTINGS
from autotune.study.limits import check_request
from autotune.workload.data.sources import READERS, SAVED, data_ending
from autotune.workload.model.builtin import BUILT_IN

TOKENIZER_CONFIG = "tokenizer_config.json"
MOST_DEPTH = 32
MOST_SECONDS = 24 * 3600.0
MOST_SPACE_BYTES = 16 * 1024
MOST_CONFIG_BYTES = 2**20
MOST_INDEX_BYTES = 2**25
MOST_ERRORS = 10
"""Largest number of errors of a request in one answer."""
MOST_NAMES = 500
"""Largest number of listed names below a root."""

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

_PART = r"\w[\w.+=@ -]*"
_ROOTED = re.compile(rf"(?P<root>[\w-]+):(?P<rest>{_PART}(?:/{_PART})*)", re.ASCII)
_HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?(?::\w[\w.-]*)?", re.ASCII)
_OPENED = f"^({re.sub('[?]P<.*?>', '', _ROOTED.pattern)}|{_HUB_ID.pattern})$"
"""The pattern of what `Roots` may open; it says in words why a name is refused."""
_Name = Annotated[str, Field(min_length=1, max_length=300)]
_Opened = Annotated[str, Field(min_length=1, max_length=300, json_schema_extra={"pattern": _OPENED})]
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
    def _plain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raises ValueError for data that cannot be stored."""
        _check_plain(data, MOST_DEPTH)
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
        raise ValueError("a text holds a character that is none")
    if isinstance(data, (dict, list)):
        if not depth:
            raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
        for part in (*data, *data.values()) if isinstance(data, dict) else data:
            _check_plain(part, depth - 1)


@dataclass(frozen=True)
class Roots:
    """The models and data that searches may name: `team:llama-8b` is a folder below the models' root `team`.

    A root is a folder, or of the hub: that of `hf://my-team` has the ids `my-team/*`, and `hf://datasets/my-team` those of data.
    executor: on whose devices they run.
    hub: off, cached (no network) or online; hub_patterns: of the hub ids that may be named then, as `meta-llama/*`.
    """

    models: Mapping[str, Path | str] = field(default_factory=dict)
    data: Mapping[str, Path | str] = field(default_factory=dict)
    hub: str = "off"
    hub_patterns: Sequence[str] = ()
    executor: str = "local"

    def resolved(self, what: str, name: str) -> str:
        """The model, tokenizer or dataset that `search` opens for a name: built in, a path without links, or a hub id.

        A tokenizer is a folder of the models. Raises InvalidRequest.
        """
        if what == "model" and name in BUILT_IN:
            return name
        roots = self.data if what == "dataset" else self.models
        rooted, patterns = _ROOTED.fullmatch(name), self.hub_patterns
        root, rest = (roots.get(rooted["root"]), rooted["rest"]) if rooted else (None, "")
        if isinstance(root, str):
            team = root.removeprefix("hf://").removeprefix("datasets/")
            name, patterns = f"{team}/{rest}", (f"{team}/*",)
        elif root is not None:
            path = _below(root, rest, f"There is no {what} {name!r} on this server.")
            if what == "dataset":
                _check_data_files(Path(path), name)
            else:
                _check_code(Path(path), name)
                _check_model_files(Path(path), name)
            return path
        if self.hub != "off" and _HUB_ID.fullmatch(name) and not os.path.lexists(name):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                if what != "dataset":
                    self._check_cached(what, name)
                return name  # it is opened without its code, too
            takes = f"It takes {', '.join(self.hub_patterns) or 'none'}."
            raise InvalidRequest(f"This server takes no {what} {name!r} from the hub.", takes)
        known = [*(BUILT_IN if what == "model" else ()), *(f"{root}:" for root in roots)]
        raise InvalidRequest(f"There is no {what} {name!r} on this server.", did_you_mean(name, known))

    def _check_cached(self, what: str, name: str) -> None:
        """Raise InvalidRequest for a hub id with refused files in the cache, or without files that the cache must have.

        Weights are never downloaded: the ones that a search reads are there now.
        """
        from autotune.workload.model.weights import cached_folder

        if folder := cached_folder(name):
            _check_model_files(folder, name)
        elif self.hub == "cached":
            advice = "Download it there, or name another one."
            raise InvalidRequest(f"The cache of this server does not hold the {what} {name!r}.", advice)

    def names(self, kind: Literal["models", "data"]) -> list[str]:
        """Names below the roots that a request may use, two folders deep, at most 500 of each root."""
        roots = self.models if kind == "models" else self.data
        folders = {root: folder for root, folder in roots.items() if isinstance(folder, Path)}
        return [name for root, folder in folders.items() for name in islice(_listed(root, folder, kind), MOST_NAMES)]


def _below(root: Path, rest: str, missing: str) -> str:
    """The path without links; raises InvalidRequest if it or its content is outside the root, or not a file or folder."""
    base = os.path.realpath(root)
    path = os.path.realpath(os.path.join(base, rest))
    links = [path]
    if os.path.isdir(path):
        entries = ((here, name) for here, folders, files in os.walk(path) for name in (*folders, *files))
        links += [entry for entry in (os.path.join(*pair) for pair in entries) if os.path.islink(entry)]
    elif not os.path.isfile(path):
        raise InvalidRequest(missing, "List the models with GET /api/v1/models.")
    for link in links:
        target = os.path.realpath(link)
        if os.path.commonpath((base, target)) != base or (link != path and not os.path.isfile(target)):
            raise InvalidRequest(missing, "List the models with GET /api/v1/models. No link may lead out of a root.")
    return path


def _check_code(path: Path, name: str) -> None:
    """Raise InvalidRequest for a model or tokenizer that brings code."""
    for file in [path / "config.json", path / TOKENIZER_CONFIG] if path.is_dir() else [path]:
        data = _read_small(file, name) if file.is_file() else None
        if isinstance(data, dict) and data.get("auto_map"):
            raise InvalidRequest(
                f"{name!r} brings Python code of its own (auto_map in {file.name}), and this server runs none.",
                "Take auto_map out of a copy, if transformers has this model itself.",
            )


def _check_model_files(path: Path, name: str) -> None:
    """Raise InvalidRequest for the folder of a model or tokenizer that unpickles, or names files outside it.

    So it does for one that names another model: an adapter's base model may be anywhere.
    """
    if (path / "adapter_config.json").exists():
        raise InvalidRequest(f"{name!r} is an adapter (adapter_config.json).", "Name the model that it is for.")
    # Of these two, safetensors are read if both exist.
    weights = [
        path / f"{stem}{end}" for stem in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
    ]
    read = next((file for file in weights if file.is_file()), None)
    if read is not None and (read.name.startswith("pytorch") or not _is_safe(read)):
        raise InvalidRequest(
            f"The weights of {name!r} are pickled, or outside of its folder ({read.name}).", "Save them as safetensors."
        )
    if (path / TOKENIZER_CONFIG).is_file():
        data = _read_small(path / TOKENIZER_CONFIG, name)
        for key, value in data.items() if isinstance(data, dict) else ():
            # Tokens and templates may hold a slash; the two names are not opened.
            if key in ("name_or_path", "special_tokens_map_file") or key.endswith(("_token", "_tokens", "template")):
                continue
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and not _is_plain_name(text) for text in texts):
                raise InvalidRequest(
                    f"{TOKENIZER_CONFIG} of {name!r} names a file outside of its folder ({key}).",
                    "Take it out of a copy: tokenizers find their files by their names.",
                )


def _check_data_files(path: Path, name: str) -> None:
    """Raise InvalidRequest for a folder that `save_to_disk` wrote, if its lists name files outside of it."""
    if not any((path / file).is_file() for file in SAVED):
        return
    for here, _, files in os.walk(path):
        for file in {"state.json", "dataset_dict.json"}.intersection(files):
            data = _read_small(Path(here, file), name)
            try:
                names = (
                    data["splits"]
                    if file == "dataset_dict.json"
                    else [part["filename"] for part in data["_data_files"]]
                )
                is_within = all(_is_plain_name(each) for each in names)
            except (KeyError, TypeError):
                is_within = False
            if not is_within:
                raise InvalidRequest(f"{file} of {name!r} names a file outside of its folder.", "Save the data again.")


def _is_plain_name(text: str) -> bool:
    """True if this is a name within a folder, without any way to another one."""
    return not re.search(r"[/\\\0]", text) and text not in (".", "..") and not text.startswith("~")


def _read_small(file: Path, name: str) -> Any:
    """The content of a small JSON file. Raises InvalidRequest."""
    if file.stat().st_size > MOST_CONFIG_BYTES:
        raise InvalidRequest(f"{file.name} of {name!r} is not a config: it has more than 1 MiB.")
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file.name} of {name!r} cannot be read as JSON.", "Name a model.") from error


def _is_safe(weights: Path) -> bool:
    """True if this file of weights, or all files that an index names, are safetensors in the same folder."""
    if weights.suffix == ".safetensors":
        return True
    try:
        if weights.stat().st_size > MOST_INDEX_BYTES:
            return False
        files = read_json(weights)["weight_map"].values()
        return all(_is_plain_name(file) and file.endswith(".safetensors") for file in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _listed(root: str, folder: Path, kind: str) -> Iterator[str]:
    base = os.path.realpath(folder)
    for here, folders, files in os.walk(base):
        depth = len(Path(here).relative_to(base).parts)
        whole = "config.json" in files if kind == "models" else depth == 1
        folders[:] = sorted(folders) if depth < 2 and not (whole and kind == "models") else []
        if kind == "models":
            single = [] if whole else [file for file in sorted(files) if file.endswith(".json")]
        else:
            single = [file for file in sorted(files) if data_ending(Path(file)) in READERS]
        for path in ([here] if whole else []) + [os.path.join(here, file) for file in single]:
            name = f"{root}:{os.path.relpath(path, base)}"
            if _ROOTED.fullmatch(name) and os.path.realpath(path) == path:
                yield name


def checked(body: SearchBody, roots: Roots, caller: Caller, cards: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The request as it is stored: plain data with names, no paths.

    Raises InvalidField for a body that no search can have, and InvalidFields for several such fields: wrong fields are left
    out, and the rest is checked again.

    cards: of the lent devices (name -> card). Checks everything that needs no opened model; nothing heavy is
    imported.
    """
    errors: list[InvalidField] = []
    rest: SearchBody | None = body
    while rest is not None and len(errors) < MOST_ERRORS:
        try:
            request = _checked(rest, roots, caller, cards)
        except InvalidRequest as error:
            wrong = error if isinstance(error, InvalidField) else _blamed(error, rest, roots, caller, cards)
            errors.append(wrong)
            rest = _without(rest, wrong.pointer)
        else:
            if not errors:
                return request
            break
    raise errors[0] if len(errors) == 1 else InvalidFields(errors)


def all_errors(
    fields: Mapping[str, Any], roots: Roots, caller: Caller, cards: Mapping[str, str]
) -> tuple[SearchBody | None, Mapping[str, str]]:
    """(the body of these fields, or None if it is wrong; JSON pointer -> error there), all in one pass."""
    problems, rest, body = {}, dict(fields), None
    try:
        body = SearchBody.model_validate(rest)
    except ValidationError as error:
        places = [entry | {"loc": ("body", *entry["loc"])} for entry in error.errors()]
        problems = dict(problem_of(RequestValidationError(places, body=rest)).errors)
        wrong = {str(entry["loc"][0]) for entry in error.errors() if entry["loc"]}
        # What needs the batch size cannot be checked without it.
        others = {"fix", "only", "args", "space"} if "global_batch_size" in wrong else set()
        rest = {name: value for name, value in rest.items() if name not in wrong | others}
        rest = {"model": next(iter(BUILT_IN)), "global_batch_size": 1} | rest
        if not wrong:  # of the body as a whole
            return None, problems
    try:
        checked(body or SearchBody.model_validate(rest), roots, caller, cards)
    except (InvalidField, InvalidFields) as error:
        several = error if isinstance(error, InvalidFields) else InvalidFields([error])
        problems |= problem_of(several).errors
    return (None if problems else body), problems


def _blamed(error: InvalidRequest, body: SearchBody, *others: Any) -> InvalidField:
    """The error, at the field that causes it (without it there is no error or another one)."""
    for name in body.model_dump(exclude_defaults=True):
        if (rest := _without(body, f"/{name}")) is not None:
            try:
                _checked(rest, *others)
            except InvalidRequest as other:
                if other.message == error.message:
                    continue
            return InvalidField(f"/{name}", error.message, error.advice)
    return InvalidField("", error.message, error.advice)


def _without(body: SearchBody, pointer: str) -> SearchBody | None:
    """The body without the field at this pointer; a wrong model is replaced by a built-in one. None if it is needed."""
    name, _, part = pointer.removeprefix("/").partition("/")
    fields = body.model_dump(exclude_defaults=True)
    if name == "model":
        stands_in = next(iter(BUILT_IN))
        return None if fields[name] == stands_in else SearchBody.model_validate(fields | {name: stands_in})
    if name not in fields or SearchBody.model_fields[name].is_required():
        return None
    content = fields.pop(name)
    if part and isinstance(content, dict):
        fields[name] = {key: value for key, value in content.items() if key != part}
    elif part and isinstance(content, list):
        fields[name] = [text for text in content if text.partition("=")[0].strip().replace("-", "_") != part]
    rest = SearchBody.model_validate(fields)
    return None if rest == body else rest


def _checked(body: SearchBody, roots: Roots, caller: Caller, cards: Mapping[str, str] | None) -> dict[str, Any]:
    if cards is not None:
        check_devices(body.model_dump(), cards, caller.most_devices)
    if body.priority > 0 and not caller.may("admin"):
        raise ForbiddenField("/priority", "Only admins may give a priority above 0.", "Leave it out.")
    request: dict[str, Any] = body.model_dump(mode="json", exclude_defaults=True) | {"device": body.device}
    _check_args(body.args)
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = job_of(request, roots, Path(folder), body.device)
            names = {options[name]: str(request[name]) for name in RESOLVED if name in options}
            for name in ("study_name", "trust_remote_code"):
                options.pop(name)
            tuned = tuning_request(**options, executor=roots.executor)
            for name, seconds in (("timeout", tuned.timeout_s), ("probe_timeout", tuned.probe_timeout_s)):
                if seconds is not None and seconds > MOST_SECONDS:
                    raise InvalidField(f"/{name}", f"{name}: a search may take 24 h at most.")
            _check_settings(tuned)
            check_request(tuned)
        except InvalidField:
            raise
        except InvalidRequest as error:
            message, advice = error.message, error.advice
            for path, name in {**names, os.path.join(folder, "space.yaml"): "space"}.items():
                message, advice = message.replace(path, name), advice.replace(path, name)
            raise type(error)(message, advice) from error
    return request


WORKERS = 32
"""Data loader workers that a search may have on any machine."""


def check_nodes(request: Mapping[str, Any], roots: Roots, unreadable: Callable[[str], list[str]]) -> None:
    """Raise InvalidField for a model or data that a node cannot read. unreadable: path -> names of such nodes."""
    for what in RESOLVED:
        path = roots.resolved(what, request[what]) if what in request else ""
        if os.path.isabs(path) and (nodes := unreadable(path)):
            message = f"{', '.join(nodes)} cannot read {request[what]!r}, or did not answer."
            raise InvalidField(f"/{what}", message, "Put it into a folder that every node has at the same path.")


def job_of(request: Mapping[str, Any], roots: Roots, folder: Path, device: str) -> dict[str, Any]:
    """Arguments of `autotune.commands.search.search` for a stored request, with the paths as they are now.

    folder: of the search, into which an inline space is written. Raises InvalidRequest if a name is not valid any more.
    """
    options = {name: value for name, value in request.items() if name not in ("name", "priority", "card")}
    for name in RESOLVED:
        if name in options:
            try:
                options[name] = roots.resolved(name, options[name])
                if not os.path.isabs(options[name]) and os.path.lexists(folder / options[name]):
                    raise InvalidRequest(f"{options[name]!r} is a file of the search.", "Name a model or data.")
            except InvalidRequest as error:
                raise InvalidField(f"/{name}", error.message, error.advice) from error
    space = options.get("space", "default")
    if space not in named_spaces():
        file = folder / "space.yaml"
        file.write_text(_checked_space(space), encoding="utf-8")
        options["space"] = str(file)
    # Its name in advice, and that of the folder into which a client fetches it.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", request.get("name") or named(options["model"])).strip("-.")[:80]
    study = f"{name or 'search'}-{folder.name[-8:]}"
    return options | {"device": device, "output_dir": str(folder), "study_name": study, "trust_remote_code": False}


def _checked_space(text: str) -> str:
    """The text of an inline space; raises InvalidField for one that is too long or repeats parts by aliases."""
    if not re.search(r"[\n:]", text):
        raise InvalidField("/space", f"There is no search space {text[:80]!r}.", did_you_mean(text, named_spaces()))
    if len(text.encode()) > MOST_SPACE_BYTES:
        raise InvalidField("/space", "space: more than 16 KiB.", "Name fewer values.")
    try:
        read_yaml(text, aliases=False)
    except InvalidYaml as error:
        raise InvalidField("/space", f"space: no valid YAML: {error}.") from error
    return text


def _check_args(args: Mapping[str, Any]) -> None:
    """Raise InvalidField for a field that is not allowed, and for values that could be paths."""
    for name, value in args.items():
        if name not in TRAINING_ARGS:
            advice = f"Leave it out. {did_you_mean(name, TRAINING_ARGS)}"
            raise InvalidField(f"/args/{name}", f"args: a search of this server takes no field {name!r}.", advice)
        if name in NUMBERS and value is not None:
            try:
                NUMBERS[name].read(value)
            except ValueError as error:
                raise InvalidField(f"/args/{name}", f"args: {name}: {error}.") from error
            if NUMBERS[name] is SETTINGS["workers"]:
                _check_workers(f"/args/{name}", [value])
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and re.search(r"[/\\{~]", text) for text in values):
            raise InvalidField(f"/args/{name}", f"args: {name} may not be a path, or JSON within a text.")


def _check_settings(request: TuningRequest) -> None:
    """Raise InvalidField for a wrong name or value in `fix` and `only`, and for any value that names a path.

    Values of the space too: a search reads and writes no other files than the server's.
    """
    given: list[tuple[str, str, tuple[Any, ...]]] = [("fix", name, (value,)) for name, value in request.fix.items()]
    given += [("only", name, tuple(values)) for name, values in request.only.items()]
    for option, name, values in given:
        try:
            read = read_override(f"--{option}", name, values)
        except InvalidRequest as error:
            raise InvalidField(f"/{option}/{name}", error.message, error.advice) from error
        _check_no_path(f"/{option}/{name}", name, read)
        if name == "workers":
            _check_workers(f"/{option}/{name}", read)
    space = open_space(request.space).values
    for name, values in space.items():
        _check_no_path("/space", name, values)
    if request.space not in named_spaces():
        _check_workers("/space", space.get("workers", ()))


def _check_workers(pointer: str, values: Iterable[Any]) -> None:
    """Raise InvalidField for more processes than any training of this machine can use; other searches share it."""
    most = max(WORKERS, 2 * (os.cpu_count() or 1))
    if wrong := [value for value in values if int(value) > most]:
        raise InvalidField(pointer, f"workers: {wrong[0]}, and a search of this server may have {most}.")


def _check_no_path(pointer: str, name: str, values: Iterable[Any]) -> None:
    if paths := [value for value in values if isinstance(value, str) and re.search(r"[/\\~]", value)]:
        message = f"{name}: {paths[0][:80]!r} names a place on the server's disks, and a search may not."
        raise InvalidField(pointer, message, "Leave it out.")
