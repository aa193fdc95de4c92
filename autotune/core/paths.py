"""The cache folder, and texts without this machine's paths and without tokens."""

import contextlib
import os
import re
import shlex
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

_LIBRARY = re.compile(
    r"(?<![\w./:-])/[^\s'\"<>|]*?/(?:site-packages|dist-packages|python3\.\d+)/(?!(?:site|dist)-packages/)"
)
_QUOTED_FOLDERS = re.compile(r"(?<=['\"`])(?:/[^/:'\"<>|`\n]+){2,}/")
_FOLDERS = re.compile(r"(?<![\w./:-])(?:/[^\s/:'\"<>|]+){2,}/")
_TOKEN = re.compile(r"\b(?:hf_|hfat_|sk-|ghp_)[A-Za-z0-9_-]{16,}")


def scrubbed(text: str) -> str:
    """The text with only the last parts of its absolute paths, and with its tokens masked."""
    folders = [os.path.expanduser("~"), tempfile.gettempdir()]
    with contextlib.suppress(OSError):  # the current one may be gone
        folders.append(os.getcwd())
    for folder in folders:
        text = text.replace(folder, folder.replace(" ", "_"))  # else only quoted paths may have spaces
    return _TOKEN.sub("(a token)", _FOLDERS.sub("…/", _QUOTED_FOLDERS.sub("…/", _LIBRARY.sub("", text))))


HIDDEN = "…/"
"""Replacement of the folders of an absolute path, which a report does not show."""


def named(place: str) -> str:
    """The last part of an absolute or hidden path; any other text (a name, a hub id, a relative path) as it is."""
    return Path(place).name if Path(place).is_absolute() or place.startswith(HIDDEN) else place


def hidden(place: str) -> str:
    """An absolute path as `…/NAME`, which no shell takes for another file; any other text as it is."""
    return f"{HIDDEN}{Path(place).name}" if Path(place).is_absolute() else place


def shown(folder: Path | None) -> str:
    """The folder relative to the current one if it is below it."""
    if folder is None:
        return "."
    try:
        return str(folder.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def study_word(folder: Path) -> str:
    """A study's folder as commands take it, quoted for a shell: its name alone if it is in `reports`."""
    place = shown(folder)
    name = place.removeprefix("reports/")
    return shlex.quote(place if "/" in name else name)


def reads_as_path(name: str) -> bool:
    """True if a name can only be a file or a folder, never a hub id (`user/name`)."""
    return name.startswith((".", "~", os.sep, HIDDEN)) or name.endswith(os.sep) or name.count("/") > 1


PREPARING = ".preparing-"
"""First part of the names of folders in the cache where data is being prepared."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/autotune`, by default ~/.cache/autotune."""
    return user_cache_path("autotune")
