"""JSON files and texts: read as plain data, written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

TOO_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """Plain data; raises ValueError for what is no JSON, and for what is nested more deeply than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def write_json(path: Path, data: Any) -> None:
    """Write whole or not at all: to a file beside it, then renamed. Raises OSError where the disk refuses."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises OSError or ValueError."""
    return parse_json(path.read_text(encoding="utf-8"))
