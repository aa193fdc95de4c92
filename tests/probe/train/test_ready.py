"""Batches that are ready: steps that empty the queue of a loader's workers are not timed."""

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.probe.train.ready import MOST_STARTS, ReadyBatches
from tests.stream import order_of, watched

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


@pytest.mark.timeout(60)
def test_what_workers_have_loaded_is_counted() -> None:
    loader: Any = DataLoader(torch.ones(64, 2), batch_size=2, num_workers=2, prefetch_factor=3)  # type: ignore[arg-type]
    ready = ReadyBatches(loader)
    assert ready.count() == 0
    batches = iter(loader)
    next(batches)
    while ready.count() < 6:
        time.sleep(0.01)
    next(batches)
    assert 5 <= ready.count() <= 6


@pytest.mark.parametrize(("counts", "starts"), [([8, 8], 1), ([0], 1), ([8, 0], 2), ([9, 6, 6, 3, 3, 0], 4)])
def test_timing_begins_anew_until_the_queue_is_in_its_steady_state(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], starts: int
) -> None:
    left = [*counts]
    monkeypatch.setattr(ReadyBatches, "count", lambda _: left.pop(0) if len(left) > 1 else left[0])
    watch, _ = watched(order_of(4, 1))
    usual = [step.seconds for step in watch.pace.steps]
    assert watch.pace._starts == starts
    assert len(watch.pace.untimed) == watched(order_of(4, 1))[0].untimed_steps + (starts - 1) * len(usual)


def test_a_queue_that_always_empties_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(10**6, 0, -100))
    monkeypatch.setattr(ReadyBatches, "count", lambda _: next(counts))
    watch, _ = watched(order_of(4, 1))
    assert watch.pace._starts == MOST_STARTS
    assert watch.pace.steps
