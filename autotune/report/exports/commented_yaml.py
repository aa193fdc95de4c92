"""YAML for people: comment lines above, one comment line below for each thing that has no counterpart."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def commented_yaml(
    head: Sequence[str], values: Mapping[str, Any], missing: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
) -> str:
    """The text of a file that any YAML reader reads as `values`.

    missing: what the answer holds and this tool has no key for. notes: other lines at the end.
    """
    import yaml

    lines = [_comment(line) for line in head]
    lines += yaml.safe_dump(json.loads(json.dumps(values)), sort_keys=False, width=1000).splitlines()
    lines += [_comment(f"no counterpart here: {name} = {json.dumps(value)}") for name, value in (missing or {}).items()]
    lines += [_comment(line) for line in notes]
    return "\n".join(lines) + "\n"


def _comment(line: str) -> str:
    return f"# {' '.join(line.split())}"
