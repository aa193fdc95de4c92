"""YAML for people: comment lines above, one comment line below for each thing that has no counterpart."""

import io
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.representer import SafeRepresenter

_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_][\w./-]*(?: [\w./-]+)*", re.IGNORECASE)
"""Strings that no version of YAML takes for something else."""


class _Representer(SafeRepresenter):
    """Writes strings and numbers that readers of YAML 1.1 and of 1.2 read alike."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if _PLAIN.fullmatch(data) else "'")

    def represent_float(self, data: float) -> Any:
        node = super().represent_float(data)
        if "." not in node.value:  # 1e-05 is a string in YAML 1.1
            node.value = node.value.replace("e", ".0e")
        return node


_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)


def yaml_text(value: Any, flow: bool = False) -> str:
    """The value in YAML. flow: on one line, with brackets."""
    yaml, stream = YAML(typ="safe", pure=True), io.StringIO()
    yaml.Representer, yaml.default_flow_style, yaml.width = _Representer, flow, sys.maxsize
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(json.loads(json.dumps(value)), stream)
    return stream.getvalue().removesuffix("\n").removesuffix("\n...")


def commented_yaml(
    head: Sequence[str], values: Mapping[str, Any], missing: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
) -> str:
    """The text of a file that any YAML reader reads as `values`.

    missing: what the answer holds and this tool has no key for. notes: other lines at the end.
    """
    lines = [_comment(line) for line in head]
    lines.append(yaml_text(values))
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


def _comment(line: str) -> str:
    return f"# {' '.join(line.split())}"
