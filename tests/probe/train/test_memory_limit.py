"""What a probe may use and has used: by a host's own figures in a process of its own, by a GPU's in a fake."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.probe.order import UNTOUCHED_BYTES, Order
from autotune.probe.train import memory_limit
from autotune.probe.train.memory_limit import DeviceMemory
from tests.makers import GIB, MIB, gpu

ROOT = Path(__file__).parents[3]

CHILD = """
import json, mmap, os, sys, types
sys.modules["torch"] = types.ModuleType("torch")  # a CPU's memory is not read by it, and it takes seconds to import
from autotune.probe.train.memory_limit import HostMemory
from autotune.probe.order import Order

MIB = 2**20
held = HostMemory(Order(kind="probe", folder="", deadline_s=1.0, allowed_bytes=int(sys.argv[1]) or None))
told = {}


def filled(megabytes):
    return bytearray(b"x") * (megabytes * MIB)


held.hold()
model = filled(20)
held.enter("data")
held.enter("forward")
passing = filled(100)
del passing
held.enter("backward")
kept = filled(60)
held.enter("optimizer")
held.enter("forward")
held.enter("data")
held.enter("")
told["held"] = held.held()
if sys.argv[3:]:  # holes in the heap: data that are not resident
    holes = [mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE) for _ in range(int(sys.argv[3]))]
if sys.argv[2]:  # its pages become resident after the highest peak
    with open(sys.argv[2], "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    told["read"] = sum(mapped[place] for place in range(0, len(mapped), 4096))
elif not sys.argv[3:]:
    try:
        filled(400)
    except MemoryError:
        told["refused"] = True
told["peaks"] = held.peaks()
if sys.argv[1] != "0":
    worker = os.fork()
    if not worker:
        try:
            filled(400)
            os._exit(0)
        except MemoryError:
            os._exit(1)
    told["worker"] = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    held.release()
    told["released"] = len(filled(400)) == 400 * MIB
print(json.dumps(told))
"""


def told_by_a_child(allowed_bytes: int, library: str = "", *holes: str) -> dict[str, Any]:
    made = subprocess.run(
        [sys.executable, "-c", CHILD, str(allowed_bytes), library, *holes],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    told: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return told


# A CPU's --------------------------------------------------------------------------------------------------------


def test_a_host_s_peaks_are_told_apart_by_stage_and_the_highest_is_that_of_all_the_time() -> None:
    peaks = told_by_a_child(0)["peaks"]
    stages = {name: size / MIB for name, size in peaks["stage_peak_bytes"].items()}
    assert list(stages) == ["build", "data", "forward", "backward", "optimizer"]
    about = {"build": 20, "data": 80, "forward": 120, "backward": 80, "optimizer": 80}
    assert stages == pytest.approx(about, abs=15), "data: it was met again when the others' memory was held"
    own = (peaks["peak_device_bytes"] - peaks["peak_file_bytes"]) / MIB
    assert own >= 80 + 400 - 15, "what was taken outside the stages counts too"


def test_the_peak_is_no_less_than_that_of_any_stage_though_files_become_resident_later(tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(b"x" * (100 * MIB))
    peaks = told_by_a_child(0, str(tmp_path / "library"))["peaks"]
    own = peaks["peak_device_bytes"] - peaks["peak_file_bytes"]
    assert own >= max(peaks["stage_peak_bytes"].values())
    assert own == pytest.approx(120 * MIB, abs=15 * MIB), "library files' pages are no part of it"
    assert peaks["peak_device_bytes"] >= 160 * MIB


def test_data_that_are_not_resident_count_where_every_training_has_less_of_them() -> None:
    own = {
        holes: peaks["peak_device_bytes"] - peaks["peak_file_bytes"]
        for holes in (20, 200)
        if (peaks := told_by_a_child(0, "", str(holes))["peaks"])
    }
    assert own[20] == pytest.approx(120 * MIB, abs=15 * MIB)
    assert own[200] == pytest.approx(80 * MIB + 200 * MIB - UNTOUCHED_BYTES, abs=15 * MIB)


def test_a_host_refuses_more_than_allowed_but_not_to_workers_nor_once_released() -> None:
    told = told_by_a_child(300 * MIB)
    assert told["refused"]
    assert told["held"] == pytest.approx(80 * MIB, abs=15 * MIB)
    assert told["worker"] == 0
    assert told["released"]
    assert told["peaks"]["peak_device_bytes"] - told["peaks"]["peak_file_bytes"] <= 300 * MIB


# A GPU's --------------------------------------------------------------------------------------------------------


class Card:
    """The allocator of a card, as `torch.cuda` tells of it; bytes."""

    def __init__(self, total: int = 80 * GIB, others: int = 0) -> None:
        self.total, self.others, self.context = total, others, 500 * MIB
        self.allocated = self.reserved = self.highest = self.highest_reserved = self.retries = 0
        self.fraction = 1.0

    def init(self) -> None:
        pass

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.highest = max(self.highest, self.allocated)
        self.highest_reserved = max(self.highest_reserved, self.reserved)

    def reset_peak_memory_stats(self) -> None:
        self.highest, self.highest_reserved = self.allocated, self.reserved

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def max_memory_allocated(self) -> int:
        return self.highest

    def max_memory_reserved(self) -> int:
        return self.highest_reserved

    def memory_reserved(self) -> int:
        return self.reserved

    def memory_stats(self) -> dict[str, int]:
        return {"num_alloc_retries": self.retries}

    def mem_get_info(self) -> tuple[int, int]:
        return self.total - self.others - self.context - self.reserved, self.total


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()
    monkeypatch.setattr(memory_limit, "torch", SimpleNamespace(cuda=card))
    return card


def order(**fields: Any) -> Order:
    return Order(**{"kind": "probe", "folder": "", "deadline_s": 1.0, "environment": gpu(), **fields})


@pytest.fixture
def held(card: Card) -> DeviceMemory:
    """On the card, 100 bytes of model built; then a step of 50 forward, 30 backward and 40 optimizer, all but 40 freed."""
    held = DeviceMemory(order())
    held.hold()
    card.allocate(100)
    for stage, size in (("data", 5), ("forward", 50), ("backward", 30), ("optimizer", 40)):
        held.enter(stage)
        card.allocate(size)
    card.allocate(-85)
    held.enter("")
    return held


def test_the_allocator_is_held_to_the_limit_less_the_context(card: Card) -> None:
    DeviceMemory(order(allowed_bytes=40 * GIB + 500 * MIB)).hold()
    assert card.fraction == pytest.approx(0.5)
    DeviceMemory(order(allowed_bytes=MIB)).hold()
    assert card.fraction == 0.0
    DeviceMemory(order(allowed_bytes=99 * GIB)).hold()
    assert card.fraction == 1.0


def test_a_card_s_peaks_are_told_apart_by_stage(card: Card, held: DeviceMemory) -> None:
    peaks = held.peaks()
    assert peaks["stage_peak_bytes"] == {"build": 100, "data": 105, "forward": 155, "backward": 185, "optimizer": 225}
    assert peaks["peak_allocated_bytes"] == peaks["peak_reserved_bytes"] == 225
    assert peaks["allocator_retries"] == 0
    assert peaks["peak_device_bytes"] == 225 + 500 * MIB, "reserved and context, where its use before is unknown"
    card.reserved = 150
    assert (held.peaks()["peak_reserved_bytes"], held.held()) == (225, 150 + 500 * MIB), "a freed cache still counts"


def test_what_making_the_model_took_is_none_of_the_training_s_peak(card: Card) -> None:
    """Whole weights that were packed, or sharded, before the first step."""
    held = DeviceMemory(order())
    held.hold()
    card.allocate(1000)
    card.allocate(-900)
    held.enter("data")
    card.allocate(50)
    peaks = held.peaks()
    assert (peaks["peak_allocated_bytes"], peaks["peak_reserved_bytes"]) == (150, 150)
    assert peaks["stage_peak_bytes"] == {"build": 1000, "data": 150}
    unfinished = DeviceMemory(order())
    unfinished.hold()
    card.allocate(2000)
    assert unfinished.peaks()["peak_allocated_bytes"] == 2150, "a model that could not be made says how far it came"


@pytest.mark.parametrize("others", [0, 3 * GIB])
def test_the_device_s_figure_is_what_it_says_less_what_was_there_before(card: Card, others: int) -> None:
    card.others, card.context = others, 700 * MIB
    held = DeviceMemory(order(device_used_bytes=others))
    held.hold()
    card.allocate(2 * GIB)
    assert held.peaks()["peak_device_bytes"] == 2 * GIB + 700 * MIB
    card.allocate(-GIB)
    card.reserved = GIB  # half of it given back: the device showed it while it was held
    assert held.peaks()["peak_device_bytes"] == 2 * GIB + 700 * MIB


def test_a_device_that_is_gone_leaves_the_peaks_unknown(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise RuntimeError("CUDA error: unspecified launch failure")

    held = DeviceMemory(order())
    monkeypatch.setattr(card, "max_memory_allocated", gone)
    monkeypatch.setattr(card, "memory_reserved", gone)
    assert held.peaks() == {}
    assert held.held() is None
