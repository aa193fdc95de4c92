"""The parent's view of the device, on machines with and without cards."""

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from autotune.core import InvalidRequest
from autotune.probe.device import nvml as device
from autotune.probe.device.nvml import (
    Card,
    choose_device,
    device_used,
    driver_version,
    topology,
    used_bytes,
    visible_cards,
)
from autotune.probe.process.launcher import ProbeHost

UUIDS = ("GPU-aaaa-0001", "GPU-bbbb-0002", "GPU-cccc-0003")


class Driver:
    """NVML of a machine with three cards."""

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return UUIDS.index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return UUIDS[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"card {handle}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    nvmlMemory_v2 = pynvml.nvmlMemory_v2

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        reserved = 600  # by the driver, which the first version adds to what is used
        assert version in (None, pynvml.nvmlMemory_v2)
        return SimpleNamespace(used=1000 + handle) if version else SimpleNamespace(used=1000 + handle + reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=1), SimpleNamespace(pid=2**22 + 7)]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return 5

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return 16


class Silent(Driver):
    """NVML that refuses every question, as under some virtual machines."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetCount"):
            raise RuntimeError("not supported")
        return super().__getattribute__(name)


def plugged(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    @contextlib.contextmanager
    def nvml() -> Iterator[Any]:
        yield driver

    monkeypatch.setattr(device, "_nvml", nvml)


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, None)


@pytest.fixture
def three_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plugged(monkeypatch, Driver())


CARD = Card(1, UUIDS[1], "card 1", 3)


# Kept initialized -----------------------------------------------------------------------------------------------


def test_the_driver_is_held_open_while_probes_come_and_go_and_let_go_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, opened = 0, []

    class Counting(Driver):
        NVMLError = pynvml.NVMLError

        def nvmlInit(self) -> None:
            nonlocal held
            held += 1

        def nvmlShutdown(self) -> None:
            nonlocal held
            held -= 1

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
            opened.append(index)
            return index

    monkeypatch.setitem(sys.modules, "pynvml", Counting())  # type: ignore[arg-type]
    with ProbeHost():
        assert held == 1
        assert device_used(CARD) is not None
        assert held == 1
    assert held == 0
    assert opened == [0, 1, 2]


# Without a card -------------------------------------------------------------------------------------------------


def test_without_a_driver_there_are_no_cards_and_no_facts(no_cards: None) -> None:
    assert visible_cards() == []
    assert driver_version() is None
    assert device_used(CARD) is None
    assert used_bytes(None) is None
    assert choose_device("auto") is None
    assert topology(CARD) == ""


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_where_there_is_none_is_refused_in_one_line(no_cards: None, asked: str) -> None:
    with pytest.raises(InvalidRequest, match="no CUDA GPU is visible") as caught:
        choose_device(asked)
    assert 'device="cpu"' in str(caught.value)
    assert "\n" not in str(caught.value)


# With three -----------------------------------------------------------------------------------------------------


def test_auto_and_cuda_mean_the_first_card(three_cards: None) -> None:
    first = Card(0, UUIDS[0], "card 0", 3)
    assert choose_device("auto") == choose_device("cuda") == choose_device("cuda:0") == first
    assert choose_device("cuda:2") == Card(2, UUIDS[2], "card 2", 3)
    assert choose_device("cpu") is None


def test_a_card_that_is_not_there_is_refused_naming_those_that_are(three_cards: None) -> None:
    with pytest.raises(InvalidRequest, match=r"cuda:2 \(card 2\)"):
        choose_device("cuda:3")


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        ("2,0", [2, 0]),
        ("1", [1]),
        ("GPU-bbbb", [1]),
        (f"{UUIDS[2]}, {UUIDS[0]}", [2, 0]),
        ("", []),
        ("-1", []),
        ("1,-1,0", [1]),
        ("0,9,1", [0]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    three_cards: None, monkeypatch: pytest.MonkeyPatch, variable: str, indices: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    cards = visible_cards()
    assert [card.index for card in cards] == indices
    assert all(card.count == len(indices) for card in cards)


def test_others_on_the_card_are_named_but_not_our_own_nor_another_namespace_s(three_cards: None) -> None:
    used = device_used(CARD)
    assert used is not None
    assert used[0] == 1001
    assert len(used[1]) == 1
    assert used[1][0].endswith("(1)")


def test_an_older_driver_or_library_answers_in_the_only_way_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(Driver):
        def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
            if version:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return SimpleNamespace(used=7)

    class Oldest(Driver):
        def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # type: ignore[override]
            return SimpleNamespace(used=7)

    for driver in (Older(), Oldest()):
        plugged(monkeypatch, driver)
        assert used_bytes(UUIDS[0]) == 7


def test_the_facts_of_a_card_are_read(three_cards: None) -> None:
    assert driver_version() == "580.1"
    assert topology(CARD) == "PCIe generation 5 x16"


def test_what_nvml_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    plugged(monkeypatch, Silent())
    assert device_used(CARD) is None
    assert used_bytes(CARD.uuid) is None
    assert topology(CARD) == ""
    assert visible_cards() == [], "nor where the driver lost its cards"
    assert choose_device("auto") is None


def test_a_card_that_other_processes_cannot_be_asked_of_still_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Container(Driver):
        def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
            raise RuntimeError("not supported")

    plugged(monkeypatch, Container())
    assert device_used(CARD) == (1001, [])


def test_a_slice_of_a_card_is_refused_by_name(three_cards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(InvalidRequest, match="MIG-1234"):
        visible_cards()
