"""YAML for people: comment lines above, one comment line below for each thing that has no counterpart."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes what readers of YAML 1.1 and of 1.2 read alike: PyYAML quotes what is not a word by the rules it knows."""


for _tag, _rule, _first in (
    ("bool", r"^[yYnN]$", "yYnN"),
    ("int", r"^[-+]?[0-9]+$|^0[ox][0-9a-fA-F]+$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_rule), list(_first))


def commented_yaml(
    head: Sequence[str], values: Mapping[str, Any], missing: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
) -> str:
    """The text of a file that any YAML reader reads as `values`.

    missing: what the answer holds and this tool has no key for. notes: other lines at the end.
    """
    lines = [_comment(line) for line in head]
    lines += yaml.dump(json.loads(json.dumps(values)), Dumper=_Dumper, sort_keys=False, width=1000).splitlines()
    lines += [_comment(f"no counterpart here: {name} = {json.dumps(value)}") for name, value in (missing or {}).items()]
    lines += [_comment(line) for line in notes]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class ToolConfig:
    """An answer in the names of a tool."""

    keys: Mapping[str, Any]  # the tool's key -> value
    missing: Mapping[str, Any] = field(default_factory=dict)  # what the answer holds and the tool has no key for
    head: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The tool's file, with comments."""
        return commented_yaml(self.head, self.keys, self.missing, self.notes)


def tool_config(
    head: Sequence[str],
    parts: Mapping[str, Any],
    names: Mapping[str, str],
    values: Mapping[str, Any],
    covered: Collection[str] = (),
    notes: Sequence[str] = (),
) -> ToolConfig:
    """Parts of an answer under the tool's names, then `values`, which replace them; None is left out.

    names: part -> the tool's key for it. covered: parts that `values` or `notes` speak of. All others have no counterpart.
    """
    keys = {names[name]: value for name, value in parts.items() if name in names} | dict(values)
    missing = {name: value for name, value in parts.items() if name not in names and name not in covered}
    return ToolConfig({key: value for key, value in keys.items() if value is not None}, missing, head, notes)


def yaml_value(value: Any) -> str:
    """The value on one line, as it follows `key: `."""
    text: str = yaml.dump(json.loads(json.dumps(value)), Dumper=_Dumper, default_flow_style=True, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(line: str) -> str:
    return f"# {' '.join(line.split())}"
