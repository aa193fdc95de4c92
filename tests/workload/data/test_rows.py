"""Lengths of datasets, and rows as far as they can be looked at."""

from collections.abc import Iterator
from typing import Any

import datasets
import pytest
import torch

from autotune.workload.data.rows import length_of, read_rows, rows_of
from autotune.workload.model.user_objects import sizes
from tests.trainers import Numbers


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class LongStream(Stream):
    def __len__(self) -> int:
        return 10**9


class Wrapper:
    """Has a length if what it wraps has one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[place]


class ByName:
    """Has a length and no rows at numbers."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, name: str) -> Any:
        return {"a": 1}[name]


def of(**columns: list[Any]) -> Any:
    return datasets.Dataset.from_dict(columns)


@pytest.mark.parametrize(
    ("dataset", "length", "read"),
    [
        (Wrapper(Numbers(3)), 3, 3),
        (Wrapper(Stream()), None, 0),
        (torch.utils.data.ChainDataset([Stream(), Stream()]), None, 0),
        (LongStream(), 10**9, 0),
        (ByName(), 3, 0),
        (datasets.DatasetDict({"a": of(x=[1, 2]), "b": of(y=["word"], z=[1])}), 3, 3),
        ({"a": Numbers(2), "b": LongStream()}, 10**9 + 2, 0),
        ({"a": Numbers(2), "b": Stream()}, None, 0),
        ({0: {"x": 1}, 1: {"x": 2}}, 2, 2),
        (None, None, 0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_a_length_is_one_that_is_told_and_rows_are_read_as_far_as_they_are_at_numbers(
    dataset: Any, length: int | None, read: int
) -> None:
    assert length_of(dataset) == length
    assert len(list(read_rows(dataset, 5.0))) == read
    assert (rows_of(dataset) is None) == (not read and not isinstance(dataset, ByName))


def test_rows_of_several_datasets_follow_one_another_and_reading_ends_at_a_row_that_cannot_be_read() -> None:
    several = datasets.DatasetDict({"a": of(x=[[1, 1], [1]]), "b": of(y=[[3, 3, 3]])})
    assert list(rows_of(several)) == [{"x": [1, 1]}, {"x": [1]}, {"y": [3, 3, 3]}]
    assert sizes(several) == [2, 1, 3]

    class Broken(Numbers):
        def __getitem__(self, place: int) -> Any:
            return super().__getitem__(place) if place < 2 else {}["image"]

    assert len(sizes(Broken(), lambda rows: rows[0])) == 2
