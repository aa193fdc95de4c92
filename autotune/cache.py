"""Where autotune keeps what it can do without: tokenised data, trained tokenizers, past studies, the device's rates."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/autotune`, by default ~/.cache/autotune (XDG Base Directory Specification)."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "autotune"
