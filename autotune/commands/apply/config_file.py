"""A YAML or JSON file with some values replaced, and all else as it was: order, comments, quotes."""

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode

from autotune.core.errors import InvalidRequest
from autotune.core.io import parse_json, read_text
from autotune.report.exports.commented_yaml import yaml_text
from autotune.space.file import read_yaml

ADDED = "# added by autotune"


def read_file(path: Path) -> str:
    """The text of a regular file. Raises InvalidRequest."""
    try:
        return read_text(path)
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be read: {error.strerror}.", "Name a config file, or a command."
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{path} cannot be read: it is not text in UTF-8.", "Name another file.") from error


def read_config(path: Path) -> tuple[str, dict[str, Any]]:
    """(text, its keys and values). Raises InvalidRequest for a file that cannot be read or holds no keys."""
    text = read_file(path)
    try:
        values = parse_json(text) if path.suffix == ".json" else read_yaml(text)
    except ValueError as error:
        raise InvalidRequest(f"{path} is not valid JSON or YAML: {error}.", "Fix it.") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise InvalidRequest(f"{path} has no NAME: VALUE lines.", "Name the config file of your training.")
    return text, values


def patched(path: Path, values: Mapping[str, Any], removed: Collection[str] = ()) -> str:
    """The file's text with these values set and these keys removed.

    Raises InvalidRequest as `read_config`, and for a file that cannot be edited key by key, such as one with anchors.
    """
    text, before = read_config(path)
    values = json.loads(json.dumps(values))
    wanted = {**{name: value for name, value in before.items() if name not in removed}, **values}
    if path.suffix == ".json":
        indent = re.search(r"\n([ \t]+)", text)
        new = json.dumps(wanted, indent=indent and indent[1], ensure_ascii=False)
        return new + text[len(text.rstrip()) :]
    new = _edited(text, values, removed)
    with contextlib.suppress(ValueError):
        if read_yaml(new) == wanted:
            return new
    raise InvalidRequest(
        f"{path} cannot be edited without changing more than its values.",
        f"Set {', '.join(f'{name}: {yaml_text(value, flow=True)}' for name, value in values.items())} by hand.",
    )


def _edited(text: str, values: Mapping[str, Any], removed: Collection[str]) -> str:
    root, edits = YAML(typ="safe", pure=True).compose(text), []
    assert isinstance(root, MappingNode)
    for key, value in root.value:
        begin, end = value.start_mark.index, _end(value)
        if begin == end:  # no value: the mark is that of the next key
            begin = end = text.index(":", key.end_mark.index) + 1
        if key.value in values:
            blank = "" if text[begin - 1 : begin].isspace() else " "
            edits.append((begin, end, f"{blank}{yaml_text(values[key.value], flow=True)}"))
        elif key.value in removed:
            line_end = text.find("\n", end)
            edits.append(
                (text.rfind("\n", 0, key.start_mark.index) + 1, line_end + 1 if line_end >= 0 else len(text), "")
            )
    new = text
    for begin, end, replacement in reversed(edits):
        new = new[:begin] + replacement + new[end:]
    present, indent = {key.value for key, _ in root.value}, " " * root.start_mark.column
    lines = [
        f"{indent}{name}: {yaml_text(value, flow=True)}\n" for name, value in values.items() if name not in present
    ]
    if not lines:
        return new
    return "".join([new, "" if new.endswith("\n") else "\n", f"{indent}{ADDED}\n", *lines])


def _end(node: Any) -> int:
    """The end of the last scalar in it: that of a block reaches over the comments after it."""
    if isinstance(node, ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
