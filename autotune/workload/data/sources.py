"""Data sources: where the data of a request is, and what is wrong with local files; imports nothing heavy."""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.core.errors import InvalidRequest
from autotune.core.paths import reads_as_path

READERS = {".txt": "text", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
READERS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
_SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test"}
_SPLIT_WORDS |= {"validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
_LOOKED_AT_BYTES = 65536
MOST_DEPTH = 100
"""Nested brackets: above a few hundred the reader of JSON lines ends its process."""
_SAVED = ("dataset_info.json", "dataset_dict.json")
"""What `save_to_disk` leaves in its folder."""
MOST_HASHED_BYTES = 256 * 2**20
"""Of the files of a data set, up to which their contents are read to identify it: within a second."""
_ENDINGS = {*READERS, *IMAGE_ENDINGS, ".arrow"}


@dataclass(frozen=True)
class DataSource:
    """Where the data is, before it is read."""

    name: str  #: as the user wrote it
    path: Path | None  #: None for a hub id
    reader: str  #: of `datasets`, or `saved` for a folder that `save_to_disk` wrote
    files: dict[str, tuple[str, ...]]  #: split -> files
    identity: str = ""  #: of local data; empty for a hub id


def find_data(name: str, images: bool) -> DataSource:
    """The source of that name. Raises InvalidRequest where the path is missing, closed, empty, or of no known kind."""
    with _reported(name):
        path = _local(name)
        if path is None:
            return DataSource(name, None, "hub", {})
        if path.is_dir():
            return _folder(name, path, images)
        reader = _reader(name, path)
        _check_file(path, reader)
        return DataSource(name, path, reader, {"train": (str(path),)}, stamp([path]))


def check_data(name: str) -> None:
    """Raise InvalidRequest for what `find_data` refuses for any model; quickly, however many files there are."""
    with _reported(name):
        path = _local(name)
        if path is not None and path.is_file():
            _check_file(path, _reader(name, path))
        elif path is not None and not any(file.suffix.lower() in _ENDINGS for file in _files_below(path)):
            raise _no_data(name, "images, or files")


def _local(name: str) -> Path | None:
    """The file or folder of that name; None for a hub id. Raises InvalidRequest, OSError."""
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    if reads_as_path(name) or Path(name.partition(":")[0]).suffix.lower() in READERS:
        raise InvalidRequest(f"There is no file or folder {name}.", "Check --dataset; a hub id is written user/name.")
    return None


@contextmanager
def _reported(name: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise InvalidRequest(f"The data {name} may not be read by this user.", "Check its permissions.") from error
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, a NUL in it, no such home
        raise InvalidRequest(f"--dataset {name[:80]!r} cannot be read: {error}.", "Check the path.") from error


def stamp(files: Iterable[Path]) -> str:
    """Identity of a version of local files: by names and contents, or by paths, sizes and times above MOST_HASHED_BYTES.

    Its digest shows nobody where a machine keeps its files.
    """
    facts = {file: file.stat() for file in sorted(files)}
    size = sum(fact.st_size for fact in facts.values())
    if size <= MOST_HASHED_BYTES:
        versions = [(file.name, _digest(file)) for file in facts]
    else:
        versions = [(str(file), f"{fact.st_size} {fact.st_mtime_ns}") for file, fact in facts.items()]
    digest = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    name = next(iter(facts)).name if len(facts) == 1 else f"{len(facts)} files"
    return f"{name}, {size} bytes, {digest}"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _reader(name: str, path: Path) -> str:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequest(
            f"The ending of {name} is none of a known kind of data.", f"Use {', '.join(READERS)}, or a folder."
        )
    return reader


def _no_data(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"The folder {name} holds no data.", f"It needs {what} ending in {', '.join(READERS)}.")


def _folder(name: str, path: Path, images: bool) -> DataSource:
    files = list(_files_below(path))
    if any((path / saved).is_file() for saved in _SAVED):
        return DataSource(name, path, "saved", {}, f"{path}: {stamp(files)}")
    if images and any(file.suffix.lower() in IMAGE_ENDINGS for file in files):
        return DataSource(name, path, "imagefolder", {}, f"{path}: {stamp(files)}")
    data = [file for file in files if file.suffix.lower() in READERS]
    if not data:
        raise _no_data(name, "images, or files" if images else "files")
    readers = sorted({READERS[file.suffix.lower()] for file in data})
    if len(readers) > 1:
        raise InvalidRequest(f"The folder {name} mixes kinds of data: {', '.join(readers)}.", "Name one file of it.")
    splits: dict[str, tuple[str, ...]] = {}
    for file in data:
        _check_file(file, readers[0])
        split = _split_of(file.relative_to(path))
        splits[split] = (*splits.get(split, ()), str(file))
    return DataSource(name, path, readers[0], splits, f"{path}: {stamp(data)}")


def _files_below(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(here, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def _split_of(file: Path) -> str:
    """The split that a file's name or folder names, else train. `datasets` looks for splits either in folders or in names."""
    words = re.split(r"[^a-z]+", str(file.with_suffix("")).lower())
    return next((_SPLIT_WORDS[word] for word in reversed(words) if word in _SPLIT_WORDS), "train")


def _check_file(path: Path, reader: str) -> None:
    """Raises InvalidRequest where a file is empty or its beginning is not text though it should be."""
    if path.stat().st_size == 0:
        raise InvalidRequest(f"The file {path} is empty.", "Choose other data.")
    with path.open("rb") as file:
        beginning = file.read(_LOOKED_AT_BYTES)
    if reader == "parquet":
        return
    try:
        # The last character may be incomplete, unless the file ends there.
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < _LOOKED_AT_BYTES)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The file {path} is not text: byte {error.start} is no UTF-8.",
            "Convert it, or choose other data.",
        ) from error
    if "\0" in text:
        raise InvalidRequest(f"The file {path} is not text: it holds NUL bytes.", "Choose other data.")
    if reader == "json" and _depth(text) > MOST_DEPTH:
        raise InvalidRequest(f"The file {path} is nested too deeply to be a table.", "Choose other data.")
    if not text.strip():
        raise InvalidRequest(f"The file {path} is empty but for white space.", "Choose other data.")


def _depth(text: str) -> int:
    """How deeply the JSON's brackets are nested, those in strings left out."""
    depth = deepest = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        depth += (match[0] in "[{") - (match[0] in "]}")
        deepest = max(deepest, depth)
    return deepest
