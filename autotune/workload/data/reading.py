"""Reading a request's data: files, folders or a dataset of the hub."""

import itertools
import operator
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.core.note import Note, NoteKind
from autotune.workload.data.chat import is_conversation
from autotune.workload.data.sources import COMPRESSIONS, DataFile, DataSource, data_ending, open_decompressed
from autotune.workload.hub import first_line, hub_is_reachable, root_cause, why_not_on_hub

MOST_GROWN, LEAST_GROWN_BYTES = 100, 2**30
"""Times its size that a compressed file may hold, and bytes that any may: text shrinks to a tenth, logs to a fiftieth."""


def read_data(source: DataSource, split: str, scratch: Path) -> tuple[Any, list[Note]]:
    """The split as a `datasets.Dataset`, not empty, and notes on how it is written.

    split: a name, or a slice such as `train[:1000]`; scratch: a folder for converted files, the caller's to remove.
    Raises InvalidRequest if the split is missing or the data cannot be parsed.
    """
    try:
        datasets.ReadInstruction.from_spec(split)
    except Exception as error:  # ValueError or AssertionError
        raise InvalidRequest(
            f"--dataset-split {split!r} cannot be read.",
            "Write a name, or a slice such as train[:1000] or train[:10%].",
        ) from error
    notes: list[Note] = []
    with _reported(source):
        data = _load(source, split, scratch, notes)
    if not len(data):
        raise InvalidRequest(f"The data {source.name} has no rows in its split {split!r}.", "Choose other data.")
    return data, notes


def _load(source: DataSource, split: str, scratch: Path, notes: list[Note]) -> Any:
    if source.reader == "hub":
        return _load_from_hub(source.name, split)
    # Counting downloads of readers that are part of the library would be its only request to the network.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    if source.reader == "imagefolder":
        return datasets.load_dataset("imagefolder", data_dir=str(source.path), cache_dir=str(scratch), split=split)
    there: Mapping[str, Any] = source.files
    if source.reader == "saved":
        saved = datasets.load_from_disk(str(source.path))
        there = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    names = [part.partition("[")[0].strip() for part in split.split("+")]  # the splits in `train[:10%]+test`
    if missing := [name for name in names if name not in there]:
        raise _no_split(source, missing[0], there)
    splits = {name: there[name] for name in names}
    if source.reader != "saved":
        splits = {name: _load_files(files, scratch, notes) for name, files in splits.items()}
    parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(data) for name, data in splits.items()})
    return datasets.concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _no_split(source: DataSource, name: str, splits: Any) -> InvalidRequest:
    return InvalidRequest(f"The data {source.name} has no split {name!r}.", did_you_mean(name, splits))


def _load_files(files: tuple[DataFile, ...], scratch: Path, notes: list[Note]) -> Any:
    """The rows of all files, which are of the same reader, one kind of separator after the other."""
    parts = []
    separated = operator.attrgetter("separator")
    for separator, group in itertools.groupby(sorted(files, key=separated), key=separated):
        paths = [str(_as_utf8(file, scratch, notes)) for file in group]
        reader, options = files[0].reader, dict[str, Any]()
        if reader == "parquet":
            options["batch_size"] = 1000  # by default the size of the first row group, and 0 if a file has no rows
        elif reader == "text":
            options["encoding"] = "utf-8-sig"  # UTF-8, with or without a byte order mark
        elif reader == "csv":
            # Texts such as N/A and null are classes as others are: only empty values are missing.
            options |= {"sep": separator, "keep_default_na": False, "na_values": [""]}
        data = datasets.load_dataset(
            reader, data_files={"train": paths}, split="train", cache_dir=str(scratch), **options
        )
        parts.append(_unwrapped(data, notes) if reader == "json" and len(paths) == 1 else data)
    return datasets.concatenate_datasets(parts)


def _as_utf8(file: DataFile, scratch: Path, notes: list[Note]) -> Path:
    """The file, or a decompressed copy of it in UTF-8: the readers would cut other encodings within a character."""
    path = _decompressed(file.path, scratch) if file.path.suffix.lower() in COMPRESSIONS else file.path
    if file.encoding.startswith("utf-8"):
        return path
    notes.append(Note(NoteKind.ENCODING, detail=f"{file.path.name} ({file.encoding})"))
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        path.open(encoding=file.encoding, newline="") as text,
        tempfile.NamedTemporaryFile(
            "w", dir=scratch, suffix=".txt", encoding="utf-8", newline="", delete=False
        ) as copy,
    ):
        shutil.copyfileobj(text, copy)
    return Path(copy.name)


def _decompressed(path: Path, scratch: Path) -> Path:
    """A copy of a compressed file. Raises InvalidRequest for one that grows as no data does."""
    most = max(LEAST_GROWN_BYTES, MOST_GROWN * path.stat().st_size)
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        open_decompressed(path) as source,
        tempfile.NamedTemporaryFile(dir=scratch, suffix=data_ending(path), delete=False) as copy,
    ):
        while block := source.read(2**20):
            most -= len(block)
            if most < 0:
                raise InvalidRequest(
                    f"The file {path} is more than {MOST_GROWN} times as large when it is decompressed.",
                    "Decompress it yourself if that is meant, and name the result.",
                )
            copy.write(block)
    return Path(copy.name)


def _unwrapped(data: Any, notes: list[Note]) -> Any:
    """The rows in a JSON file that is one object: a list of rows in one of its fields, or a list for each column."""
    if len(data) != 1:
        return data
    row = data[0]
    lists = [name for name, value in row.items() if _is_rows(value)]
    if len(lists) == 1:
        notes.append(Note(NoteKind.ROWS_OF_LIST, detail=repr(lists[0])))
        return datasets.Dataset.from_list(row[lists[0]])
    columns = {name: list(value.values()) if isinstance(value, Mapping) else value for name, value in row.items()}
    sizes = {len(value) if isinstance(value, list) else None for value in columns.values()}
    if len(sizes) == 1 and None not in sizes and not any(map(is_conversation, columns.values())):
        notes.append(Note(NoteKind.ROWS_OF_COLUMNS))
        return datasets.Dataset.from_dict(columns)
    return data


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and not is_conversation(value)


def _load_from_hub(name: str, split: str) -> Any:
    repository, _, subset = name.partition(":")
    hub_is_reachable()  # else datasets waits for the hub long
    try:
        return datasets.load_dataset(repository, subset or None, split=split)
    except (datasets.exceptions.DatasetNotFoundError, ConnectionError, FileNotFoundError) as error:
        raise InvalidRequest(
            f"There is no dataset {name!r}: no file or folder of that name, and {why_not_on_hub()}.",
            "Check --dataset; a private one needs `hf auth login`.",
        ) from error
    except ValueError as error:
        if "onfig name" in str(error):
            raise InvalidRequest(
                f"The dataset {repository!r} has several subsets: {first_line(error)}.", "Write it as user/name:subset."
            ) from error
        raise


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
            raise _no_split(source, match[1], re.findall(r"'(.*?)'", match[2])) from error
        if isinstance(root_cause(error), PermissionError):
            raise InvalidRequest(
                f"The data {source.name} may not be read by this user.", "Check its permissions."
            ) from error
        kind = {"text": "txt"}.get(source.reader, source.reader)
        raise InvalidRequest(
            f"The data {source.name} cannot be read as {kind}: {text}.", "Check that the file is whole."
        ) from error
