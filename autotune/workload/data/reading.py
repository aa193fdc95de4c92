"""Reads the data that a request names: files, folders or a dataset of the hub; one clear line says what is wrong."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.workload.data.sources import DataSource
from autotune.workload.hub import first_line, hub_is_reachable


def read_data(source: DataSource, split: str, scratch: Path) -> Any:
    """The split as a `datasets.Dataset`, not empty.

    split: a name, or a slice such as `train[:1000]`; scratch: a folder for converted files, the caller's to remove.
    Raises InvalidRequest where the split is missing or the data cannot be parsed.
    """
    try:
        datasets.ReadInstruction.from_spec(split)
    except Exception as error:  # ValueError or AssertionError
        raise InvalidRequest(
            f"--dataset-split {split!r} cannot be read.",
            "Write a name, or a slice such as train[:1000] or train[:10%].",
        ) from error
    with _reported(source):
        data = _load(source, split, scratch)
    if not len(data):
        raise InvalidRequest(f"The data {source.name} has no rows in its split {split!r}.", "Choose other data.")
    return data


def _load(source: DataSource, split: str, scratch: Path) -> Any:
    if source.reader == "hub":
        return _load_from_hub(source.name, split)
    if source.reader == "saved":
        return _load_saved(source, split)
    # Counting downloads of readers that are part of the library would be its only request to the network.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    if source.reader == "imagefolder":
        return datasets.load_dataset("imagefolder", data_dir=str(source.path), split=split, cache_dir=str(scratch))
    files = {name: _whole(source, list(_known(source.name, name, source.files))) for name in _splits(split)}
    options = {"sep": "\t"} if files[_splits(split)[0]][0].endswith(".tsv") else {}
    return datasets.load_dataset(source.reader, data_files=files, split=split, cache_dir=str(scratch), **options)


def _splits(split: str) -> list[str]:
    """The names in `train[:10%]+test`."""
    return [part.partition("[")[0].strip() for part in split.split("+")]


def _known(data: str, split: str, splits: Mapping[str, Any]) -> Any:
    """What the data have under this name of a split; raises InvalidRequest where there is none."""
    if split not in splits:
        raise InvalidRequest(f"The data {data} has no split {split!r}.", did_you_mean(split, splits))
    return splits[split]


def _whole(source: DataSource, files: list[str]) -> list[str]:
    """The files without those of no rows, of which the reader of parquet fails. Raises InvalidRequest where none is left."""
    if source.reader == "parquet":
        files = [file for file in files if pyarrow.parquet.read_metadata(file).num_rows]
    if not files:
        raise InvalidRequest(f"The data {source.name} has no rows.", "Choose other data.")
    return files


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
    lengths = {name: len(_known(source.name, name, saved)) for name in _splits(split)}
    parts = datasets.ReadInstruction.from_spec(split).to_absolute(lengths)
    rows = [saved[part.splitname].select(range(part.from_, part.to)) for part in parts]
    return datasets.concatenate_datasets(rows) if len(rows) > 1 else rows[0]


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
            _known(source.name, match[1], dict.fromkeys(re.findall(r"'(.*?)'", match[2])))
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
