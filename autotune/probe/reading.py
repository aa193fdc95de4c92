"""Reads the data that a request names: files, folders or a dataset of the hub; one clear line says what is wrong."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets

from autotune.errors import InvalidRequest, did_you_mean
from autotune.probe.hub import first_line, hub_is_reachable
from autotune.probe.sources import DataSource


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
