"""The parent's view of the device, on machines with and without cards."""

import os
from typing import Any

import pynvml
import pytest

from autotune.core import InvalidRequest
from autotune.probe.device.nvml import (
    Card,
    choose_device,
    device_used,
    driver_version,
    first_error,
    kept_initialized,
    lasting_facts,
    topology,
    used_bytes,
    visible_cards,
)
from autotune.probe.process.launcher import ProbeHost
from tests.nvidia import GIB, H100, UUIDS, Machine

CARD = Card(1, UUIDS[1], "card 1", 3)
T4 = {**H100, "name": "Tesla T4", "total": 15 * GIB}


@pytest.fixture
def three_cards(machine_with_driver: Machine) -> Machine:
    machine_with_driver.plug(*({**H100, "name": f"card {number}", "used": 1000 + number} for number in range(3)))
    return machine_with_driver


# Kept initialized -----------------------------------------------------------------------------------------------


def held(machine: Machine) -> int:
    """How often the library is open."""
    return machine.calls.count("nvmlInitWithFlags") - machine.calls.count("nvmlShutdown")


def test_the_driver_is_held_open_while_probes_come_and_go_and_let_go_at_the_end(three_cards: Machine) -> None:
    with ProbeHost():
        assert held(three_cards) == 1
        assert device_used(CARD) is not None
        assert held(three_cards) == 1
        assert three_cards.calls.count("nvmlDeviceGetHandleByIndex_v2") == 3
    assert held(three_cards) == 0


# Without a card -------------------------------------------------------------------------------------------------


def unseen() -> None:
    """No question has an answer, and none raises."""
    assert visible_cards() == []
    assert choose_device("auto") is None
    assert driver_version() is None
    unknown(CARD)
    with kept_initialized():
        pass


def unknown(card: Card) -> None:
    assert device_used(card) is None
    assert used_bytes(card.uuid) is None
    assert used_bytes(None) is None
    assert topology(card) == ""
    assert lasting_facts(card) == {}


def test_without_the_library_there_are_no_cards_and_no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: pynvml._nvmlCheckReturn(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    unseen()
    assert first_error() == ""


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"error.nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, "Driver Not Loaded"),
        ({f"{number}.error": pynvml.NVML_ERROR_GPU_IS_LOST for number in range(3)} | {"driver": None}, "GPU is lost"),
    ],
)
def test_a_machine_whose_cards_cannot_be_opened_has_none_and_says_why(
    three_cards: Machine, values: dict[str, Any], error: str
) -> None:
    three_cards.set(values | {f"{number}.used": None for number in range(3)})
    unseen()
    assert first_error() == error
    with pytest.raises(InvalidRequest, match=f"no CUDA GPU is visible here .NVML: {error}"):
        choose_device("cuda")


def test_cuda_on_a_machine_without_cards_is_refused_in_one_line(machine_with_driver: Machine) -> None:
    with pytest.raises(InvalidRequest, match=r"no CUDA GPU is visible here\.") as caught:
        choose_device("cuda:7")
    assert "--device=cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


# With three -----------------------------------------------------------------------------------------------------


def test_auto_and_cuda_mean_the_first_card(three_cards: Machine) -> None:
    first = Card(0, UUIDS[0], "card 0", 3)
    assert choose_device("auto") == choose_device("cuda") == choose_device("cuda:0") == first
    assert choose_device("cuda:2") == Card(2, UUIDS[2], "card 2", 3)
    assert choose_device("cpu") is None


def test_a_card_that_is_not_there_is_refused_naming_those_that_are(three_cards: Machine) -> None:
    with pytest.raises(InvalidRequest, match=r"cuda:2 \(card 2\)"):
        choose_device("cuda:3")


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        ("2,0", [2, 0]),
        ("GPU-bbbb", [1]),
        (f"{UUIDS[2]}, {UUIDS[0]}", [2, 0]),
        ("", []),
        ("1,-1,0", [1]),
        ("0,9,1", [0]),
        ("0,0", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    three_cards: Machine, monkeypatch: pytest.MonkeyPatch, variable: str, indices: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    cards = visible_cards()
    assert [card.index for card in cards] == indices
    assert all(card.count == len(indices) for card in cards)


# CUDA's order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "indices"),
    [
        ({}, [2, 0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [0, 2]),
        ({"CUDA_VISIBLE_DEVICES": UUIDS[1]}, [1]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
    ],
)
def test_cards_of_several_kinds_are_numbered_as_cuda_numbers_them(
    machine_with_driver: Machine, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], indices: list[int]
) -> None:
    machine_with_driver.plug(T4, T4, H100, cuda="2,0,1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [card.index for card in visible_cards()] == indices
    first = choose_device("cuda")
    assert first is not None
    assert first.index == indices[0]


def test_cuda_is_woken_once_and_only_for_cards_of_several_kinds(machine_with_driver: Machine) -> None:
    machine_with_driver.plug(H100, H100, cuda="1,0")
    assert [card.index for card in visible_cards()] == [0, 1]
    assert "cuInit" not in machine_with_driver.calls
    machine_with_driver.plug(H100, T4, cuda="1,0")
    assert [card.index for card in visible_cards()] == [1, 0]
    assert [card.index for card in visible_cards()] == [1, 0]
    assert machine_with_driver.calls.count("cuInit") == 1


def test_a_cuda_that_does_not_answer_leaves_the_order_of_the_slots(machine_with_driver: Machine) -> None:
    machine_with_driver.plug(T4, H100, cuda="")
    assert [card.index for card in visible_cards()] == [0, 1]


# Slices of cards --------------------------------------------------------------------------------------------------


def test_a_slice_of_a_card_is_refused_by_name(three_cards: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    with pytest.raises(InvalidRequest, match="MIG-1234"):
        visible_cards()


@pytest.mark.parametrize(("variable", "device"), [(None, "auto"), ("0", "cuda"), (UUIDS[1], "cuda:1")])
def test_a_card_that_is_divided_is_refused_though_no_variable_names_a_slice(
    three_cards: Machine, monkeypatch: pytest.MonkeyPatch, variable: str | None, device: str
) -> None:
    three_cards.set({"1.MigMode": 1})
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(InvalidRequest, match=f"card 1 .{UUIDS[1]}. is divided into slices") as caught:
        choose_device(device)
    assert "CUDA_VISIBLE_DEVICES" in caught.value.advice
    assert "\n" not in str(caught.value)
    assert choose_device("cpu") is None


@pytest.mark.parametrize(("variable", "indices"), [(f"{UUIDS[2]},{UUIDS[0]}", [2, 0]), ("", []), ("-1", [])])
def test_beside_a_divided_card_whole_ones_can_be_named_by_their_uuid(
    three_cards: Machine, monkeypatch: pytest.MonkeyPatch, variable: str, indices: list[int]
) -> None:
    three_cards.set({"1.MigMode": 1})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert [card.index for card in visible_cards()] == indices


# What is in use ---------------------------------------------------------------------------------------------------


def test_others_on_the_card_are_named_but_not_our_own_nor_another_namespace_s(three_cards: Machine) -> None:
    three_cards.set({"1.processes": f"1,{2**22 + 7},{os.getpid()}"})
    used = device_used(CARD)
    assert used is not None
    assert used[0] == 1001
    assert len(used[1]) == 1
    assert used[1][0].endswith("(1)")


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_UNKNOWN])
def test_a_question_that_fails_for_a_moment_is_not_answered_with_another_number(
    three_cards: Machine, error: int
) -> None:
    three_cards.set({"0.error.nvmlDeviceGetMemoryInfo_v2": error})
    assert used_bytes(UUIDS[0]) is None


def test_the_facts_of_a_card_are_read(three_cards: Machine) -> None:
    assert driver_version() == "580.1"
    assert topology(CARD) == "PCIe generation 5 x16"
    clocks = {"max_sm_clock_mhz": 1980, "max_memory_clock_mhz": 2619}
    assert lasting_facts(CARD) == {"power_limit_mw": 700_000, **clocks, "ecc": 1, "mig": 0, "pcie_width": 16}


@pytest.mark.parametrize("values", [{"1.error": pynvml.NVML_ERROR_GPU_IS_LOST}, {"1.lost_after": 0}])
def test_what_nvml_does_not_say_of_a_card_is_unknown_and_the_others_stay(
    three_cards: Machine, values: dict[str, int]
) -> None:
    three_cards.set(values | {"0.error.nvmlDeviceGetMemoryInfo_v2": 15})
    unknown(CARD)
    assert [card.index for card in visible_cards()] == [0, 2]


@pytest.mark.parametrize("answered", range(4))
def test_a_card_that_is_lost_between_two_questions_has_no_half_answer(three_cards: Machine, answered: int) -> None:
    three_cards.set({"1.lost_after": answered})  # it is found by its uuid, asked for processes and for memory
    assert device_used(CARD) == (None if answered < 3 else (1001, []))


def test_a_card_that_other_processes_cannot_be_asked_of_still_tells_its_memory(three_cards: Machine) -> None:
    three_cards.set({"1.processes": None})
    assert device_used(CARD) == (1001, [])
