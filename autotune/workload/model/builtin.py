"""Built-in models: shapes that need no network, read from `builtin.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML


@dataclass(frozen=True)
class BuiltIn:
    """One model: the Hugging Face model type, the config's fields that differ from its defaults."""

    model_type: str
    task: str
    description: str
    config: Mapping[str, Any]


_TABLE = YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml"))

BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType({name: BuiltIn(**fields) for name, fields in _TABLE.items()})
