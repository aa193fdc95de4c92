"""Cache of what child processes answered, on disk."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from autotune.core import read_json, write_json
from autotune.core.paths import cache_folder
from autotune.space.variables import READ

MOST_FILES = 50
"""Answers of a kind that are kept, the newest."""

_DECISIVE = re.compile(
    r"(CUDA|NVIDIA|OMP|GOMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|ATEN|TORCH|PYTORCH|TRITON|BNB|BITSANDBYTES|LD|PYTHON|HF|XLA|PJRT)_?.*"
    r"|CC|CXX|PATH|" + "|".join(READ)
)
"""Environment variables that change what libraries can do here."""

_COMPILERS = ("g++", "clang++", "c++", "gcc", "clang", "cc")
_PACKAGE = Path(__file__).parents[1]


class AnswerFile:
    """A cached reply that holds for these facts, this software and these environment variables."""

    def __init__(self, kind: str, **facts: Any) -> None:
        content = json.dumps([facts, _software(), _variables()], sort_keys=True)
        self._path = cache_folder() / kind / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.json"

    def read(self) -> Any:
        """The reply; None if its file is missing or damaged."""
        with contextlib.suppress(OSError, ValueError):
            return read_json(self._path)
        return None

    def write(self, reply: Any) -> None:
        """Keep the reply instead of the oldest; a cache that cannot be written is not an error."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, reply)
            files = sorted(self._path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in files[MOST_FILES:]:
                path.unlink()


@cache
def _source_digest() -> str:
    """Digest of autotune's own code, which decides what is asked and how it is answered."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _software() -> list[Any]:
    """Interpreter, installed packages (their metadata's folders bear the versions), compilers, and the loader's libraries."""
    packages: set[str] = set()
    for folder in sys.path:
        with contextlib.suppress(OSError):
            packages |= {name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))}
    loader = Path("/etc/ld.so.cache")  # written anew whenever a library is installed
    return [
        sys.executable,
        sys.version,
        _source_digest(),
        sorted(packages),
        [shutil.which(name) for name in _COMPILERS],
        loader.stat().st_mtime_ns if loader.is_file() else None,
    ]


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _DECISIVE.fullmatch(name)}
