"""Rows of a user's dataset, as far as it can be looked at."""

import time
from collections.abc import Iterator, Mapping
from typing import Any


def length_of(dataset: Any) -> int | None:
    """Number of samples, of a mapping of datasets of all together; None if it has no length or does not tell it."""
    lengths = [_length(part) for part in parts_of(dataset)]
    return None if None in lengths else sum(filter(None, lengths))


def parts_of(dataset: Any) -> list[Any]:
    """The datasets of a mapping of some (`datasets.DatasetDict`); any other dataset is its only part."""
    return [*dataset.values()] if isinstance(dataset, Mapping) and 0 not in dataset else [dataset]


def rows_of(dataset: Any) -> Any:
    """The dataset with its rows at 0, 1, 2 …: those of a mapping's datasets one after another; None of a stream.

    A stream may have a length.
    """
    import torch

    parts = parts_of(dataset)
    if not parts or any(isinstance(part, torch.utils.data.IterableDataset) or _length(part) is None for part in parts):
        return None
    return dataset if parts[0] is dataset else torch.utils.data.ConcatDataset(parts)


def read_rows(dataset: Any, seconds: float) -> Iterator[Any]:
    """The first rows, as far as they are read in this time; none beyond one that cannot be read at its place."""
    until, rows = time.monotonic() + seconds, rows_of(dataset)
    for place in range(0 if rows is None else len(rows)):
        try:
            row = rows[place]
        except Exception:  # whatever the user's code raises, and its training will
            return
        yield row
        if time.monotonic() > until:
            return


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # as transformers' `has_length`, and whatever else a length raises
        return None
