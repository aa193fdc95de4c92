"""Workers that the user's process can start."""

import multiprocessing

import pytest

from autotune.core import Workload
from autotune.space.settings import SETTINGS
from autotune.space.settings.setting import Context
from autotune.workload.data.workers import why_no_workers
from tests import makers
from tests.trainers import Numbers


@pytest.mark.parametrize(
    ("method", "dataset", "collator", "problem"),
    [
        (None, Numbers(), lambda batch: batch, ""),
        ("fork", Numbers(), lambda batch: batch, ""),
        ("spawn", Numbers(), max, ""),
        ("spawn", Numbers(), lambda batch: batch, "starts workers by spawn, and the data_collator cannot be pickled"),
        ("forkserver", (place for place in range(2)), max, "by forkserver, and the train_dataset cannot be pickled"),
    ],
)
def test_what_cannot_be_pickled_keeps_workers_out_unless_they_are_forked(
    method: str | None, dataset: object, collator: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: method)
    reason = why_no_workers({"train_dataset": dataset, "data_collator": collator})
    assert bool(reason) == bool(problem)
    assert problem in reason
    context = Context(makers.cpu(), Workload("own", "custom", no_workers=reason))
    unavailable = SETTINGS["workers"].unavailable
    assert unavailable(0, context) is None
    assert (unavailable(2, context) is None) == (not problem)
