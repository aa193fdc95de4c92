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
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.core.errors import InvalidSpace, did_you_mean
from autotune.core.io import TOO_DEEP
from autotune.space.settings import MICRO, SETTINGS, Setting

DIVISORS, TILES = "divisors", "tiles"
SIZES = {DIVISORS: {"multiple_of": 1}, TILES: {"multiple_of": TILES}}
"""Words for micro-batch sizes: every divisor of the global batch, or the multiples that suit the device."""

MOST_DEPTH = 100
"""Nested brackets that a YAML file may have."""

_SHAPE = "Write `parameters:` and below it a line for each setting, as `  precision: [fp32, bf16]`."


class _SpaceFile(BaseModel):
    """The shape of a search-space file; setting names have underscores."""

    model_config = ConfigDict(extra="forbid")

    description: str = ""
    core: list[str] = []
    parameters: dict[str, list[str | int | float | bool] | str | int | bool | dict[str, int]]


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


def read_yaml(text: str) -> Any:
    """Plain data, by YAML 1.2's core schema; raises yaml.YAMLError."""
    return _parsed(text)[0]


def _parsed(text: str) -> tuple[Any, yaml.Node | None]:
    """(plain data, the node that it was made of). Raises yaml.YAMLError, also where it is nested too deeply to be read, or
    where a value only looks like a date or a number."""
    try:
        loader = _Yaml12(text)  # a SafeLoader
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except RecursionError:
        raise yaml.YAMLError(TOO_DEEP) from None
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from error


def spaces_folder() -> Path:
    """Where the shipped spaces are: inside the wheel, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "search_spaces"
    return inside if inside.is_dir() else package.parent / "search_spaces"


def named_spaces() -> dict[str, Path]:
    """Every shipped space by name."""
    return {path.stem: path for path in sorted(spaces_folder().glob("*.yaml"))}


def describe_space(path: Path) -> str:
    """The one-line description of a space file."""
    return _open_space(path)[0].description


def read_space(name_or_path: str) -> dict[str, tuple[Any, ...]]:
    """setting -> values of a shipped space's name or a file's path.

    Raises InvalidSpace naming file, line and the nearest right word.
    """
    path = _path(name_or_path)
    file, lines = _open_space(path)
    space: dict[str, tuple[Any, ...]] = {}
    for name, given in file.parameters.items():
        where = f"{path}:{lines.get(name, 1)}"
        setting = SETTINGS.get(name.replace("-", "_"))
        if setting is None:
            raise InvalidSpace(f"{where}: there is no setting {name!r}.", did_you_mean(name, SETTINGS))
        if setting.name == MICRO and isinstance(given, str) and given in SIZES:
            values: list[Any] = [SIZES[given]]
        else:
            values = given if isinstance(given, list) else [given]
        space[setting.name] = tuple(_value(setting, value, where) for value in values)
        if not values:
            raise InvalidSpace(f"{where}: {name} has no values.", "List at least one, or take the line out.")
    if not space:
        raise InvalidSpace(f"{path}: no parameters.", f"List some of {', '.join(SETTINGS)}.")
    return {MICRO: space.pop(MICRO, ({"multiple_of": 1},)), **space}


def core_settings(name_or_path: str) -> tuple[str, ...]:
    """The settings that a space has searched before its others; none: all at once. Raises InvalidSpace as `read_space`."""
    path = _path(name_or_path)
    file, lines = _open_space(path)
    names = [name.replace("-", "_") for name in file.parameters]
    core = tuple(name.replace("-", "_") for name in file.core)
    for name in core:
        if name not in names:
            raise InvalidSpace(
                f"{path}:{lines.get('core', 1)}: the core names {name!r}, which has no values below.",
                did_you_mean(name, names),
            )
    return core


def _path(name_or_path: str) -> Path:
    shipped = named_spaces()
    path = shipped.get(name_or_path) or Path(name_or_path)
    if not os.path.isfile(path):  # Path.is_file raises where a name is too long
        raise InvalidSpace(f"There is no search space {name_or_path!r}.", did_you_mean(name_or_path, shipped))
    return path


def _value(setting: Setting, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        try:
            return setting.read(value)
        except ValueError as error:
            raise InvalidSpace(f"{where}: {setting.name}: {error}.", did_you_mean(value, setting.values)) from error
    multiple = value.get("multiple_of", 0) if setting.name == MICRO and len(value) == 1 else 0
    if multiple == TILES or multiple >= 1:
        return value
    raise InvalidSpace(
        f"{where}: {value} is no value of {setting.name}.",
        "Write divisors, tiles, {multiple_of: 8} or a list of sizes.",
    )


def _open_space(path: Path) -> tuple[_SpaceFile, dict[str, int]]:
    """The file's content, and the line of each setting and top-level key."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSpace(f"{path} cannot be read: {error.strerror}.", "Name a YAML file.") from error
    except UnicodeDecodeError as error:
        raise InvalidSpace(f"{path} is not UTF-8 text: byte {error.start}.", "Name a YAML file.") from error
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
            raise InvalidSpace(
                f"{path}:{line}: {key} is given here and in line {lines[key]}.", "Pass only one of them."
            )
        lines[key] = line
    try:
        return _SpaceFile.model_validate(data), lines
    except ValidationError as error:
        unknown = next((problem for problem in error.errors() if problem["type"] == "extra_forbidden"), None)
        first = unknown or error.errors()[0]
        keys = [str(key) for key in first["loc"][:2]]
        line = next((lines[key] for key in reversed(keys) if key in lines), 1)
        advice = did_you_mean(keys[0], _SpaceFile.model_fields) if unknown else _SHAPE
        message = "there is no such section" if unknown else first["msg"]
        raise InvalidSpace(f"{path}:{line}: {'.'.join(keys) or 'file'}: {message}.", advice) from error


def _lines(node: yaml.Node | None, depth: int = 2) -> Iterator[tuple[str, int]]:
    """(key, line) of the two uppermost levels."""
    if isinstance(node, yaml.MappingNode) and depth:
        for key, value in node.value:
            yield str(key.value), key.start_mark.line + 1
            yield from _lines(value, depth - 1)
