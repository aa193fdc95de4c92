"""The user's dataset and code, as the workload tells them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from autotune.core.request import tuning_request
from autotune.workload.model.user_objects import UserObjects, sizes, workload_of

LONG = {"17": 9}


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    """As many numbers as the sample's name says."""
    return {"x": torch.zeros(len(rows), max(LONG.get(row["path"], 2) for row in rows))}


def refused(rows: list[Any]) -> Any:
    raise ValueError("no row alone")


PATHS = [{"path": str(place)} for place in range(40)]
NUMBERS = [{"x": torch.zeros(size), "text": "long" * size} for size in (3, 5, 4)]
WORDS = [{"text": "one-very-long-word"}, {"text": "a b c d"}]


@pytest.mark.parametrize(
    ("rows", "collator", "read"),
    [
        (PATHS, padded, [9 if place == 17 else 2 for place in range(40)]),
        (PATHS, refused, []),
        (PATHS, None, []),
        (NUMBERS, refused, [3, 5, 4]),
        ([{"text": word, "labels": [1]} for word in ("a", "b c")], refused, []),
        (WORDS, lambda rows: {"x": torch.zeros(len(rows[0]["text"].split()))}, [1, 4]),
        ([[1, 2, 3], [1, 2]], lambda rows: torch.tensor(rows), [3, 2]),
        ([[1, 2, 3], [1, 2]], lambda rows: torch.zeros(10 - len(rows[0])), [7, 8]),
        ([{"label": 1, "of": 2}] * 3, lambda rows: torch.zeros(4), [4, 4, 4]),
    ],
)
def test_a_sample_is_as_large_as_its_batch_where_it_does_not_show_it(rows: Any, collator: Any, read: list[int]) -> None:
    assert sizes(rows, collator) == read


def test_unseen_sizes_are_told() -> None:
    model, request = torch.nn.Linear(2, 2).double(), tuning_request("own", 8)
    user = UserObjects(train_dataset=PATHS, data_collator=padded)
    workload = workload_of(request, user, model)
    assert (workload.longest, workload.notes) == ((17,), ())
    assert workload.weights_dtype == "float64"
    workload = workload_of(request, replace(user, data_collator=None), model)
    assert [note.text for note in workload.notes] == [
        "the largest batch may need more than the peak: neither the samples nor the collator show their sizes"
    ]
