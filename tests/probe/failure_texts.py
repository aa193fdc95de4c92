"""Texts of libraries that ran out of memory, and others that only sound like it; each from its source or a user's report."""

import json
from pathlib import Path

_TEXTS = json.loads((Path(__file__).parents[1] / "data" / "failure_texts.json").read_text(encoding="utf-8"))
OUT_OF_MEMORY: dict[str, str] = _TEXTS["out of memory"]
OTHER: dict[str, tuple[str, str]] = {name: (outcome, text) for name, (outcome, text) in _TEXTS["other"].items()}
"""Name -> (outcome, text)."""
