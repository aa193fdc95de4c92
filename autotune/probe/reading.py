"""Opens the data a request names: files, folders or a dataset of the hub; one clear line says what is wrong."""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from autotune.errors import InvalidRequest, did_you_mean
from autotune.probe.hub import first_line, hub_is_reachable

READERS = {
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"})
_SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test", "eval": "test"}
_SPLIT_WORDS |= {"validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
_LOOKED_AT_BYTES = 65536


@dataclass(frozen=True)
class DataSource:
    """Where the data is, before it is read.

    name: as the user wrote it; path: None for a hub id; reader: of `datasets`, `saved` for a folder that
    `save_to_disk` wrote; files: split -> files; identity: of local data, empty for a hub id.
    """

    name: str
    path: Path | None
    reader: str
    files: dict[str, tuple[str, ...]]
    identity: str = ""


def find_data(name: str, images: bool) -> DataSource:
    """The source of that name; images: an image folder is wanted.

    Raises InvalidRequest where the path is missing, closed, empty, or of no known kind.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _folder(name, path.resolve(), images)
        if path.exists():
            return _file(name, path.resolve())
    except PermissionError as error:
        raise InvalidRequest(f"The data {name} may not be read by this user.", "Check its permissions.") from error
    if _reads_as_path(name):
        raise InvalidRequest(f"There is no file or folder {name}.", "Check --dataset; a hub id is written user/name.")
    return DataSource(name, None, "hub", {})


def read_data(source: DataSource, split: str, scratch: Path) -> Any:
    """The split as a `datasets.Dataset`, not empty.

    split: a name, or a slice such as `train[:1000]`; scratch: a folder for converted files, the caller's to remove.
    Raises InvalidRequest where the split is missing or the data cannot be parsed.
    """
    with _reported(source):
        data = _load(source, split, scratch)
    if not len(data):
        raise InvalidRequest(f"The data {source.name} has no rows in its split {split!r}.", "Choose other data.")
    return data


def stamp(files: Iterable[Path]) -> str:
    """Path, size and time of local files: what tells one version of them from another."""
    stamps = []
    for file in sorted(files):
        facts = file.stat()
        stamps.append((str(file), facts.st_size, facts.st_mtime_ns))
    # The digest stands for the paths and times: a report tells no one where a machine keeps its files.
    digest = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
    name = Path(stamps[0][0]).name if len(stamps) == 1 else f"{len(stamps)} files"
    return f"{name}, {sum(size for _, size, _ in stamps)} bytes, {digest}"


def _load(source: DataSource, split: str, scratch: Path) -> Any:
    base = re.split(r"[\[+]", split)[0]
    if source.reader == "hub":
        return _load_from_hub(source.name, split)
    if source.reader == "saved":
        return _load_saved(source, split)
    # Counting downloads of readers that are part of the library would be its only request to the network.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    if source.reader == "imagefolder":
        return datasets.load_dataset("imagefolder", data_dir=str(source.path), split=split, cache_dir=str(scratch))
    if base not in source.files:
        raise _no_split(source.name, base, source.files)
    files = list(source.files[base])
    options = {"sep": "\t"} if files[0].endswith(".tsv") else {}
    return datasets.load_dataset(
        source.reader, data_files={base: files}, split=split, cache_dir=str(scratch), **options
    )


def _load_from_hub(name: str, split: str) -> Any:
    repository, _, subset = name.partition(":")
    reachable = hub_is_reachable()
    try:
        return datasets.load_dataset(repository, subset or None, split=split)
    except (datasets.exceptions.DatasetNotFoundError, ConnectionError, FileNotFoundError) as error:
        where = "the hub has none" if reachable else "the hub cannot be reached and its cache here has none"
        raise InvalidRequest(
            f"There is no dataset {name!r}: no file or folder of that name, and {where}.",
            "Check --dataset; a private one needs `hf auth login`.",
        ) from error
    except ValueError as error:
        if "onfig name" in str(error):
            raise InvalidRequest(
                f"The dataset {repository!r} has several subsets: {first_line(error)}.", "Write it as user/name:subset."
            ) from error
        raise


def _load_saved(source: DataSource, split: str) -> Any:
    saved = datasets.load_from_disk(str(source.path))
    if not isinstance(saved, datasets.DatasetDict):
        saved = datasets.DatasetDict({"train": saved})
    if split not in saved:
        raise _no_split(source.name, split, saved)
    return saved[split]


@contextmanager
def _reported(source: DataSource) -> Iterator[None]:
    """Turns what the readers raise into one line; out of memory and the user's interrupt stay what they are."""
    try:
        yield
    except (InvalidRequest, MemoryError):
        raise
    except Exception as error:
        text = first_line(error)
        if "corresponds to no data" in text:
            raise InvalidRequest(f"The data {source.name} has no rows.", "Choose other data.") from error
        if match := re.match(r'Unknown split "(.*?)"\. Should be one of \[(.*)\]', text):
            raise _no_split(source.name, match[1], re.findall(r"'(.*?)'", match[2])) from error
        if isinstance(_root(error), PermissionError):
            raise InvalidRequest(f"The data {source.name} may not be read by this user.", "Check it.") from error
        kind = {"text": "txt"}.get(source.reader, source.reader)
        raise InvalidRequest(
            f"The data {source.name} cannot be read as {kind}: {text}.",
            "Check that the file is whole.",
        ) from error


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _no_split(name: str, split: str, known: Iterable[str]) -> InvalidRequest:
    return InvalidRequest(f"The data {name} has no split {split!r}.", did_you_mean(split, known))


def _file(name: str, path: Path) -> DataSource:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequest(
            f"The ending of {name} is none of a known kind of data.", f"Known: {', '.join(READERS)}, or a folder."
        )
    _check_file(path, reader)
    return DataSource(name, path, reader, {"train": (str(path),)}, stamp([path]))


def _folder(name: str, path: Path, images: bool) -> DataSource:
    files = _files_below(path)
    if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
        return DataSource(name, path, "saved", {}, f"{path}: {stamp(files)}")
    if images and any(file.suffix.lower() in IMAGE_ENDINGS for file in files):
        return DataSource(name, path, "imagefolder", {}, f"{path}: {stamp(files)}")
    known = [file for file in files if file.suffix.lower() in READERS]
    if not known:
        what = "images, or files" if images else "files"
        raise InvalidRequest(f"The folder {name} holds no data.", f"It needs {what} ending in {', '.join(READERS)}.")
    readers = sorted({READERS[file.suffix.lower()] for file in known})
    if len(readers) > 1:
        raise InvalidRequest(f"The folder {name} mixes kinds of data: {', '.join(readers)}.", "Name one file of it.")
    splits: dict[str, tuple[str, ...]] = {}
    for file in known:
        _check_file(file, readers[0])
        split = _split_of(file.relative_to(path))
        splits[split] = (*splits.get(split, ()), str(file))
    return DataSource(name, path, readers[0], splits, f"{path}: {stamp(known)}")


def _files_below(folder: Path) -> list[Path]:
    found = []
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        found += [Path(here) / one for one in sorted(names) if not one.startswith(".")]
    return [one for one in found if one.is_file()]


def _split_of(file: Path) -> str:
    """The split that a file's name or folder speaks of; train where they are silent."""
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
        # The last character may be cut in two, unless the file ends there.
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < _LOOKED_AT_BYTES)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"The file {path} is not text: byte {error.start} is no UTF-8.",
            "Convert it, or choose other data.",
        ) from error
    if "\0" in text:
        raise InvalidRequest(f"The file {path} is not text: it holds NUL bytes.", "Choose other data.")
    if not text.strip():
        raise InvalidRequest(f"The file {path} is empty but for white space.", "Choose other data.")


def _reads_as_path(name: str) -> bool:
    ending = Path(name.partition(":")[0]).suffix.lower()
    return name.startswith((".", "~", os.sep)) or name.endswith(os.sep) or name.count("/") > 1 or ending in READERS
