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

READERS = {".txt": "text", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
READERS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
BINARY = ("parquet", "arrow")
"""Readers of files that are not text."""
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}
"""Ending of a compressed file -> fsspec's name of it; the last two need packages that may not be installed."""
IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
_SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test"}
_SPLIT_WORDS |= {"validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
_SEPARATORS = ",;\t|"
_LOOKED_AT_BYTES = 65536
SAVED = ("dataset_info.json", "dataset_dict.json")
"""Files that `save_to_disk` writes into its folder."""
MOST_HASHED_BYTES = 256 * 2**20
"""Bytes of the files of a data set up to which their contents are read to identify it: within a second."""
_ENDINGS = {*READERS, *IMAGE_ENDINGS}


@dataclass(frozen=True)
class DataSource:
    """Location of the data, before it is read."""

    name: str  #: as the user wrote it
    path: Path | None  #: None for a hub id
    reader: str  #: of `datasets`, or `saved` for a folder that `save_to_disk` wrote
    files: dict[str, list[Path]]  #: split -> files
    separator: str = ""  #: of the columns of csv files
    identity: str = ""  #: of local data; empty for a hub id


def find_data(name: str, images: bool) -> DataSource:
    """The source of that name. Raises InvalidRequest if the path is missing, closed, empty, or not of a known kind."""
    with _reported(name):
        path = _local(name)
        if path is None:
            return DataSource(name, None, "hub", {})
        if path.is_dir():
            return _folder(name, path, images)
        separator = _checked(path)
        return DataSource(name, path, READERS[data_ending(path)], {"train": [path]}, separator, stamp([path]))


def check_data(name: str) -> None:
    """Raise InvalidRequest for data that `find_data` refuses for any model; quickly, for any number of files."""
    with _reported(name):
        path = _local(name)
        if path is not None and path.is_file():
            _checked(path)
        elif path is not None and not any(data_ending(file) in _ENDINGS for file in _files_below(path)):
            raise _no_data(name, "images, or files")


def data_ending(path: Path) -> str:
    """The ending of a file's name in small letters, without the compression's: `.csv` of `A.CSV.gz`."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1].lower() in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1].lower() if suffixes else ""


def _local(name: str) -> Path | None:
    """The file or folder of that name; None for a hub id. Raises InvalidRequest, OSError."""
    path = Path(name).expanduser()
    if path.exists():
        return path.resolve()
    if reads_as_path(name) or data_ending(Path(name.partition(":")[0])) in READERS:
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


def _no_data(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"The folder {name} holds no data.", f"Put {what} into it that end in {', '.join(READERS)}.")


def _folder(name: str, path: Path, images: bool) -> DataSource:
    files = list(_files_below(path))
    if any((path / saved).is_file() for saved in SAVED):
        return DataSource(name, path, "saved", {}, identity=f"{path}: {stamp(files)}")
    if images and any(file.suffix.lower() in IMAGE_ENDINGS for file in files):
        return DataSource(name, path, "imagefolder", {}, identity=f"{path}: {stamp(files)}")
    data = [file for file in files if data_ending(file) in READERS]
    if not data:
        raise _no_data(name, "images, or files" if images else "files")
    readers, separators = ({READERS[data_ending(file)] for file in data}, {_checked(file) for file in data})
    if len(readers) > 1 or len(separators) > 1:
        what = f"kinds of data: {', '.join(sorted(readers))}" if len(readers) > 1 else "separators of columns"
        raise InvalidRequest(f"The folder {name} mixes {what}.", "Name one file of it.")
    splits: dict[str, list[Path]] = {}
    for file in data:
        splits.setdefault(_split_of(file.relative_to(path)), []).append(file)
    return DataSource(name, path, readers.pop(), splits, separators.pop(), f"{path}: {stamp(data)}")


def _files_below(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = (Path(here, name) for name in sorted(names) if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def _split_of(file: Path) -> str:
    """The split that a file's name or folder names, else train. `datasets` looks for splits either in folders or in names."""
    words = re.split(r"[^a-z]+", str(file.with_suffix("")).lower())
    return next((_SPLIT_WORDS[word] for word in reversed(words) if word in _SPLIT_WORDS), "train")


def _checked(path: Path) -> str:
    """The separator of a csv file's columns; empty for other files.

    Raises InvalidRequest for an unknown ending, and if the file is empty or its beginning is not text although it should be.
    """
    reader = READERS.get(data_ending(path))
    if reader is None:
        raise InvalidRequest(
            f"The ending of {path} is not that of a known kind of data.", f"Use {', '.join(READERS)}, or a folder."
        )
    if path.stat().st_size == 0:
        raise InvalidRequest(f"The file {path} is empty.", "Choose other data.")
    if reader in BINARY:
        return ""
    try:
        beginning = _beginning(path)
    except PermissionError:
        raise
    except Exception as error:  # of a decompressor
        raise InvalidRequest(
            f"The file {path} cannot be decompressed: {error}.",
            "Check that it is whole; .zst needs `pip install zstandard`, .lz4 `pip install lz4`.",
        ) from error
    try:
        # The last character may be incomplete, unless the file ends there.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(beginning, final=len(beginning) < _LOOKED_AT_BYTES)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The file {path} is not UTF-8 (byte {error.start}).", "Save it as UTF-8.") from error
    if "\0" in text or not text.strip():
        what = "holds NUL bytes" if "\0" in text else "holds only white space"
        raise InvalidRequest(f"The file {path} {what}.", "Choose other data.")
    return _separator(text) if reader == "csv" else ""


def _beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed as its ending says."""
    if (compression := COMPRESSIONS.get(path.suffix.lower())) is None:
        with path.open("rb") as file:
            return file.read(_LOOKED_AT_BYTES)
    import fsspec

    with fsspec.open(str(path), "rb", compression=compression) as file:
        return bytes(file.read(_LOOKED_AT_BYTES))


def _separator(text: str) -> str:
    """Separator of the columns of a csv file: the most frequent of the usual characters in its first line."""
    header = re.sub(r'"[^"]*"', "", text.lstrip().partition("\n")[0])
    return max(_SEPARATORS, key=header.count)
