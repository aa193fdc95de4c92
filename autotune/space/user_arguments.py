"""The user's own TrainingArguments, from a file, a mapping or the object, as plain fields."""

import copy
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.core.io import parse_json
from autotune.core.note import Note, NoteKind
from autotune.core.request import UserArguments
from autotune.space.file import read_yaml
from autotune.space.setup import PRIVATE

OF_THE_DEVICE = ("use_cpu", "local_rank")
"""Private fields that the result's device and the launcher decide."""

FILES = ("deepspeed", "fsdp_config", "accelerator_config")
"""Fields that may name a JSON file."""

FILLED_IN = {"debug": [], "disable_tqdm": False, "include_for_metrics": [], "report_to": []}
"""Values that `TrainingArguments` fills in for defaults of its own. Without checkpointing, for which subclasses have another
default."""


def _read(given: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    path = Path(given)
    try:
        if not str(given):
            raise FileNotFoundError(ENOENT, "no file is named")
        text = path.read_text(encoding="utf-8")
        data = parse_json(text) if path.suffix == ".json" else read_yaml(text)
    except OSError as error:
        raise InvalidRequest(
            f"--args {str(given)!r} cannot be read: {error.strerror}.", "Name a JSON or YAML file."
        ) from error
    except ValueError as error:
        raise InvalidRequest(
            f"{path} is not valid JSON or YAML: {error}.",
            "Fix it, or write the file with `TrainingArguments.to_json_string()`.",
        ) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InvalidRequest(f"{path} has no fields of TrainingArguments.", "Write NAME: VALUE lines.")
    return data


@dataclass(frozen=True)
class GivenArguments:
    """The user's own arguments."""

    fields: dict[str, Any]  #: without folders and secrets
    unsent: Sequence[str]  #: names of those that are not plain data
    source: str  #: of them all, for people
    # A copy of the object, else the fields of the user's run alone (folders, names, secrets), which stay in memory.
    user: Any = field(default=None, repr=False)


def read_user_arguments(args: UserArguments) -> GivenArguments:
    """The user's own arguments of the object, of fields, or of a JSON or YAML file. Raises InvalidRequest."""
    source = os.fspath(args) if isinstance(args, (str, os.PathLike)) else "Your training arguments"
    if args is None or isinstance(args, (str, os.PathLike, Mapping)):
        fields = _read(args)
        private = {name: fields[name] for name in PRIVATE if name in fields and name not in OF_THE_DEVICE}
        public = {name: value for name, value in fields.items() if name not in PRIVATE}
        return GivenArguments(public, (), source, private)
    if not dataclasses.is_dataclass(args) or not hasattr(args, "to_dict"):
        raise InvalidRequest(
            f"--args is a {type(args).__name__}.", "Pass a TrainingArguments, its fields, or a JSON or YAML file."
        )
    return GivenArguments(*fields_of(args), source, copy.copy(args))


def fields_of(arguments: Any) -> tuple[dict[str, Any], list[str]]:
    """(fields of `TrainingArguments` that differ from its defaults as they are declared, names of what is not plain data).

    Of a subclass (TRL's `SFTConfig`) too, whose own defaults are other ones. No folders, no secrets, and nothing that
    `TrainingArguments` itself has put in the place of such a default.
    """
    from transformers import TrainingArguments
    from transformers.trainer_pt_utils import AcceleratorConfig

    config = {name: value for name, value in AcceleratorConfig().to_dict().items() if name != "use_configured_state"}
    filled_in = FILLED_IN | {"accelerator_config": config}
    declared = {field.name: field.default for field in dataclasses.fields(TrainingArguments) if field.init}
    values = {name: value for name, value in arguments.to_dict().items() if name in declared and name not in PRIVATE}
    differing = {
        name: value
        for name, value in values.items()
        if value not in (declared[name], filled_in.get(name, declared[name]))
    }
    plain = {name: value for name, value in differing.items() if _is_plain(value)}
    return plain, sorted(set(differing) - set(plain))


def files_of(fields: Mapping[str, Any]) -> dict[str, Path]:
    """Field -> the file that it names."""
    named = {name: value for name in FILES if isinstance(value := fields.get(name), str)}
    return {name: Path(value) for name, value in named.items() if os.path.isfile(value)}


def plain_fields(arguments: Any) -> dict[str, Any]:
    """All fields of these arguments that are plain data."""
    return {name: value for name, value in arguments.to_dict().items() if _is_plain(value)}


def left_out(names: Sequence[str]) -> list[Note]:
    """Notes on arguments that no probe gets."""
    return [Note(NoteKind.NOT_PLAIN, detail=", ".join(names))] if names else []


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
