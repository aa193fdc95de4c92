"""Reading a request's data: files, folders or a dataset of the hub."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.workload.data.sources import DataSource
from autotune.workload.hub import first_line, hub_is_reachable, root_cause, why_not_on_hub


def read_data(source: DataSource, split: str, scratch: Path) -> Any:
    """The split as a `datasets.Dataset`, not empty.

    split: a name, or a slice such as `train[:1000]`; scratch: a folder for tables of them, the caller's to remove.
    Raises InvalidRequest if the split is missing or the data cannot be parsed.
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
    if source.reader == "json" and len(data) == 1:
        raise InvalidRequest(
            f"The data {source.name} is a single JSON object.", "Write a row in each line, or a list of rows."
        )
    return data


def _load(source: DataSource, split: str, scratch: Path) -> Any:
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
    if source.reader == "saved":
        parts = datasets.ReadInstruction.from_spec(split).to_absolute({name: len(there[name]) for name in names})
        return datasets.concatenate_datasets(
            [there[part.splitname].select(range(part.from_, part.to)) for part in parts]
        )
    options: dict[str, dict[str, Any]] = {
        "parquet": {"batch_size": 1000},  # by default the size of the first row group, and 0 if a file has no rows
        "text": {"encoding": "utf-8-sig"},  # UTF-8, with or without a byte order mark
        # Texts such as N/A and null are classes as others are: only empty values are missing.
        "csv": {"sep": source.separator, "keep_default_na": False, "na_values": [""]},
    }
    files = {name: [str(file) for file in there[name]] for name in names}
    reader, cache = source.reader, str(scratch)
    return datasets.load_dataset(reader, data_files=files, split=split, cache_dir=cache, **options.get(reader, {}))


def _no_split(source: DataSource, name: str, splits: Any) -> InvalidRequest:
    return InvalidRequest(f"The data {source.name} has no split {name!r}.", did_you_mean(name, splits))


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
