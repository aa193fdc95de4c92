"""Workers that start as in the user's process."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.core import Workload
from autotune.space.settings import SETTINGS
from autotune.space.settings.setting import Context
from autotune.workload.data.workers import Workers
from tests import makers
from tests.trainers import Numbers

IN_A_CHILD = """
import cloudpickle, pickle, sys, torch
from autotune.workload.data.workers import Workers

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, place): return place + offset

if __name__ == "__main__":
    offset = 3
    sent = cloudpickle.dumps((Rows(), lambda batch: [place * 2 for place in batch]))
    del Rows
    rows, collate = pickle.loads(sent)
    Workers("spawn").start_alike()
    loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=1, collate_fn=collate)
    print(loader.multiprocessing_context, torch.multiprocessing.get_start_method(), list(loader))
"""


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
    workers = Workers.of_this_process(dataset, collator)
    assert workers.start_method == (method or multiprocessing.get_all_start_methods()[0])
    assert bool(workers.problem) == bool(problem)
    assert problem in workers.problem
    context = Context(makers.cpu(), Workload("own", "custom", no_workers=workers.problem))
    unavailable = SETTINGS["workers"].unavailable
    assert unavailable(0, context) is None
    assert (unavailable(2, context) is None) == (not problem)


def test_a_child_sends_spawned_workers_what_no_module_defines(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(IN_A_CHILD)
    ended = subprocess.run([sys.executable, "child.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.stdout.endswith("spawn [[6, 8, 10, 12], [14, 16, 18, 20]]\n"), ended.stderr
