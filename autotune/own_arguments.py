"""The user's own TrainingArguments, from a file, a mapping or the object, as plain fields."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import InvalidRequest
from autotune.space_file import read_yaml
from autotune.training_arguments import PRIVATE


def read_training_args(given: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """The user's own TrainingArguments as fields, from a JSON or YAML file or a mapping.

    Folders and secrets are left out. Raises InvalidRequest."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {name: value for name, value in given.items() if name not in PRIVATE}
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.", "Name a JSON or YAML file.") from error
    except (ValueError, yaml.YAMLError) as error:
        where = " ".join(str(error).split())
        raise InvalidRequest(
            f"{path} is no valid JSON or YAML: {where}.", "Mend it, or write it with `to_json_string`."
        ) from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InvalidRequest(f"{path} holds no fields of TrainingArguments.", "Write NAME: VALUE lines.")
    return {name: value for name, value in data.items() if name not in PRIVATE}


def fields_of(arguments: Any) -> dict[str, Any]:
    """The fields of a `TrainingArguments` that differ from the defaults, as plain values; no secrets, no folders."""
    defaults = type(arguments)(output_dir=arguments.output_dir, use_cpu=arguments.use_cpu).to_dict()
    own = arguments.to_dict()
    return {name: own[name] for name in own if name not in PRIVATE and own[name] != defaults.get(name)}
