"""Search-space file: YAML -> setting -> values, with the line and the fix for whatever is wrong in it.

core: [micro_batch_size, precision]   # searched first; without this line all settings at once
parameters:
  micro_batch_size: divisors
  precision: [fp32, bf16]
  workers: [0, 2]
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from autotune.core.errors import InvalidSpace, did_you_mean
from autotune.core.io import TOO_DEEP
from autotune.space.settings import MICRO, SETTINGS, Setting

DIVISORS, TILES = "divisors", "tiles"
SIZES = {DIVISORS: {"multiple_of": 1}, TILES: {"multiple_of": TILES}}
"""Words for micro-batch sizes: every divisor of the global batch, or the multiples that suit the device."""

MOST_DEPTH = 100
"""Nested brackets that a YAML file may have."""

_SHAPE = "Write `parameters:` and below it a line for each setting, as `  precision: [fp32, bf16]`."
_SECTIONS = ("description", "core", "parameters")


@dataclass(frozen=True)
class SpaceFile:
    """Content of a search-space file.

    description: one line. values: setting -> its values, the micro-batch sizes first.
    core: settings that are searched before the others, none: all at once.
    """

    description: str
    values: dict[str, tuple[Any, ...]]
    core: tuple[str, ...]


class _Yaml12(yaml.SafeLoader):
    """YAML 1.2's core schema: only true and false are booleans, 5e-5 is a number, `off` and `no` are words."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        """Limits the depth: the scanner's time grows with its square."""
        if self.flow_level >= MOST_DEPTH:
            raise yaml.YAMLError(TOO_DEEP)
        super().fetch_flow_collection_start(TokenClass)


_BOOL, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:float"
_Yaml12.yaml_implicit_resolvers = {
    letter: [(tag, rule) for tag, rule in rules if tag not in (_BOOL, _FLOAT)]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml12.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|false|True|False|TRUE|FALSE)$"), list("tTfF"))
_Yaml12.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$"),
    list("-+.0123456789"),
)


class _NoAliases(_Yaml12):
    """Without aliases, which make much of a few lines."""

    def fetch_anchor(self) -> None:
        """Refuses what an alias would repeat; an alias alone is an error anyway."""
        raise yaml.YAMLError("anchors (&) are not taken")


def read_yaml(text: str, aliases: bool = True) -> Any:
    """Plain data, by YAML 1.2's core schema; raises yaml.YAMLError, and for anchors if there may be no aliases."""
    return _parsed(text, _Yaml12 if aliases else _NoAliases)[0]


def _parsed(text: str, kind: type[_Yaml12] = _Yaml12) -> tuple[Any, yaml.Node | None]:
    """(plain data, the node that it was made of).

    Raises yaml.YAMLError, also if it is nested too deeply to be read, or if a value only looks like a date or a number.
    """
    try:
        loader = kind(text)  # a SafeLoader
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except RecursionError:
        raise yaml.YAMLError(TOO_DEEP) from None
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from error


def named_spaces() -> dict[str, Path]:
    """Every shipped space by name: inside the wheel, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "search_spaces"
    folder = inside if inside.is_dir() else package.parent / "search_spaces"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def open_space(name_or_path: str) -> SpaceFile:
    """A shipped space of this name, or a file. Raises InvalidSpace naming file, line and the nearest right word."""
    shipped = named_spaces()
    path = shipped.get(name_or_path) or Path(name_or_path)
    if not os.path.isfile(path):  # Path.is_file raises if a name is too long
        raise InvalidSpace(f"There is no search space {name_or_path!r}.", did_you_mean(name_or_path, shipped))
    try:
        return _space(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSpace(f"{path} cannot be read: {error.strerror}.", "Name a YAML file.") from error
    except UnicodeDecodeError as error:
        raise InvalidSpace(f"{path} is not UTF-8 text: byte {error.start}.", "Name a YAML file.") from error


@lru_cache(maxsize=32)
def _space(path: Path, text: str) -> SpaceFile:
    """The content of a file with this text. Raises InvalidSpace."""
    data, lines = _parsed_file(path, text)
    for section in data:
        if section not in _SECTIONS:
            message = f"{path}:{lines.get(str(section), 1)}: {section}: there is no such section."
            raise InvalidSpace(message, did_you_mean(section, _SECTIONS))
    parameters = data.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise InvalidSpace(f"{path}:{lines.get('parameters', 1)}: no parameters.", _SHAPE)
    values = {}
    for name, given in parameters.items():
        where = f"{path}:{lines.get(str(name), 1)}"
        setting = SETTINGS.get(str(name).replace("-", "_"))
        if setting is None:
            raise InvalidSpace(f"{where}: there is no setting {name!r}.", did_you_mean(name, SETTINGS))
        several = given if isinstance(given, list) else [given]
        if not several:
            raise InvalidSpace(f"{where}: {name} has no values.", "List at least one, or take the line out.")
        is_word = setting.name == MICRO and isinstance(given, str) and given in SIZES
        values[setting.name] = (SIZES[given],) if is_word else tuple(_value(setting, value, where) for value in several)
    first = data.get("core") or []
    if not isinstance(first, list):
        raise InvalidSpace(
            f"{path}:{lines.get('core', 1)}: core: {first!r} is not a list.", "Write `core: [precision]`."
        )
    core = tuple(str(name).replace("-", "_") for name in first)
    for name in core:
        if name not in values:
            message = f"{path}:{lines['core']}: the core names {name!r}, which has no values below."
            raise InvalidSpace(message, did_you_mean(name, values))
    sizes = values.pop(MICRO, (SIZES[DIVISORS],))
    return SpaceFile(str(data.get("description") or ""), {MICRO: sizes, **values}, core)


def _value(setting: Setting, value: Any, where: str) -> Any:
    if isinstance(value, (str, int, float)):
        try:
            return setting.read(value)
        except ValueError as error:
            raise InvalidSpace(f"{where}: {setting.name}: {error}.", did_you_mean(value, setting.values)) from error
    multiple = (
        value.get("multiple_of") if setting.name == MICRO and isinstance(value, dict) and len(value) == 1 else None
    )
    if isinstance(multiple, int) and multiple >= 1:
        return value
    advice = "Write divisors, tiles, {multiple_of: 8} or a list of sizes." if setting.name == MICRO else _SHAPE
    raise InvalidSpace(f"{where}: {value} is not a value of {setting.name}.", advice)


def _parsed_file(path: Path, text: str) -> tuple[dict[Any, Any], dict[str, int]]:
    """The file's content, and the line of each setting and top-level key."""
    try:
        data, node = _parsed(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        line = mark.line + 1 if mark else 1
        raise InvalidSpace(f"{path}:{line}: no valid YAML: {problem}.", "Check indentation and brackets.") from error
    if not isinstance(data, dict):
        problem = "is empty" if data is None else "holds no section `parameters`"
        raise InvalidSpace(f"{path}:1: the file {problem}.", _SHAPE)
    lines: dict[str, int] = {}
    for key, line in _lines(node):
        if key in lines:
            message = f"{path}:{line}: {key} is given here and in line {lines[key]}."
            raise InvalidSpace(message, "Pass only one of them.")
        lines[key] = line
    return data, lines


def _lines(node: yaml.Node | None, depth: int = 2) -> Iterator[tuple[str, int]]:
    """(key, line) of the two uppermost levels."""
    if isinstance(node, yaml.MappingNode) and depth:
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1
            yield from _lines(value, depth - 1)
