"""Search-space file: YAML -> setting -> values, with the line and the fix for whatever is wrong in it.

core: [micro_batch_size, precision]   # searched first; without this line all settings at once
parameters:
  micro_batch_size: divisors
  precision: [fp32, bf16]
  workers: [0, 2]
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scanner import Scanner

from autotune.core.errors import InvalidSpace, did_you_mean
from autotune.core.io import TOO_DEEP
from autotune.space.settings import MICRO, SETTINGS, Setting

DIVISORS, TILES = "divisors", "tiles"
SIZES = {DIVISORS: {"multiple_of": 1}, TILES: {"multiple_of": TILES}}
"""Words for micro-batch sizes: every divisor of the global batch, or the multiples that suit the device."""

MAX_DEPTH = 100
"""Nested lists and mappings that a YAML file may have."""

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


@dataclass(eq=False)  # an exception stays hashable
class InvalidYaml(ValueError):
    """Error in a text in YAML, with its line."""

    problem: str
    line: int = 1

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


class _NoAnchors(Scanner):
    """Refuses what an alias would repeat: a few lines could make much."""

    def fetch_anchor(self) -> None:
        raise MarkedYAMLError(problem="anchors (&) are not taken", problem_mark=self.reader.get_mark())


def read_yaml(text: str, aliases: bool = True, typ: str = "safe") -> Any:
    """Data of YAML 1.2, in which `off` and `no` are words. Raises InvalidYaml; also for anchors, if aliases is False.

    typ: `safe` for plain data, `rt` for mappings that know their lines.
    """
    yaml = YAML(typ=typ, pure=True)
    yaml.max_depth = MAX_DEPTH
    if not aliases:
        yaml.Scanner = _NoAnchors
    try:
        return yaml.load(text)
    except MaxDepthExceededError as error:
        raise InvalidYaml(TOO_DEEP) from error
    except MarkedYAMLError as error:
        raise InvalidYaml(str(error.problem), error.problem_mark.line + 1 if error.problem_mark else 1) from error
    except (YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:  # 2026-13-01, `!!bool 3`, `!!int`
        raise InvalidYaml(" ".join(str(error).split())) from error


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
    try:
        data = read_yaml(text, typ="rt")
    except InvalidYaml as error:
        message = f"{path}:{error.line}: no valid YAML: {error.problem}."
        raise InvalidSpace(message, "Check indentation and brackets.") from error
    if not isinstance(data, dict):
        raise InvalidSpace(f"{path}:1: the file is empty or has no section `parameters`.", _SHAPE)
    for section in data:
        if section not in _SECTIONS:
            message = f"{path}:{_line(data, section)}: {section}: there is no such section."
            raise InvalidSpace(message, did_you_mean(section, _SECTIONS))
    parameters = data.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise InvalidSpace(f"{path}:{_line(data, 'parameters')}: no parameters.", _SHAPE)
    values = {}
    for name, given in parameters.items():
        where = f"{path}:{_line(parameters, name)}"
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
            f"{path}:{_line(data, 'core')}: core: {first!r} is not a list.", "Write `core: [precision]`."
        )
    core = tuple(str(name).replace("-", "_") for name in first)
    for name in core:
        if name not in values:
            message = f"{path}:{_line(data, 'core')}: the core names {name!r}, which has no values below."
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
        return {"multiple_of": int(multiple)}
    advice = "Write divisors, tiles, {multiple_of: 8} or a list of sizes." if setting.name == MICRO else _SHAPE
    raise InvalidSpace(f"{where}: {value} is not a value of {setting.name}.", advice)


def _line(mapping: Any, key: Any) -> int:
    """Line of a key in the file, 1 if it is not there or merged (<<)."""
    return int((mapping.lc.data or {}).get(key, (0,))[0]) + 1
