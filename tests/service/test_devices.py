"""The devices that a server lends."""

from typing import Any

import pytest

from autotune.core.errors import InvalidRequest
from autotune.probe.device import nvml
from autotune.service import devices
from autotune.service.devices import Devices, check_devices

CARDS = [nvml.Card(index, f"GPU-{index}", "NVIDIA H200", 2) for index in range(2)]


def test_a_machine_without_a_gpu_lends_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_cards", list)
    lent = Devices()
    assert lent.names == ("cpu",)
    assert lent.cards["cpu"]


def test_all_gpus_are_lent_by_default_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nvml, devices):
        monkeypatch.setattr(module, "visible_cards", lambda: CARDS)
    lent = Devices()
    assert lent.cards == {"cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA H200"}
    assert lent.free([]) == ["cuda:0", "cuda:1"]
    assert lent.free(["cuda:0", None]) == ["cuda:1"]
    assert lent.free(["cuda:0,cuda:1"]) == []
    assert Devices(["cuda", "cpu"]).names == ("cuda:0", "cpu")
    with pytest.raises(InvalidRequest, match="cuda:2"):
        Devices(["cuda:2"])


@pytest.mark.parametrize("names", [["cpu", "cpu"], ["cuda", "cuda:0"], ["auto"], ["gpu"]])
def test_names_that_are_no_devices_or_come_twice_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=names[-1]):
        Devices(names)


def test_a_search_sees_only_the_gpus_and_cores_that_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nvml, devices):
        monkeypatch.setattr(module, "visible_cards", lambda: CARDS)
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: {*range(9)})
    lent = Devices(["cuda:0", "cuda:1", "cpu"])
    assert lent.options("cuda:1", {}) == {"device": "cuda", "devices": 1}
    assert lent.variables("cuda:1") == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert lent.variables("cpu") == {}
    assert lent.cores("cuda:1") == [4, 5, 6, 7]
    assert lent.options("cuda:1,cuda:0", {}) == {"device": "cuda", "devices": 2}
    assert lent.variables("cuda:1,cuda:0") == {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"}
    assert sorted(lent.cores("cuda:1,cuda:0")) == [*range(8)]
    assert lent.options("cpu", {}) == {"device": "cpu"}
    assert lent.cores("cpu") == [*range(9)]


NAMED = {"cpu": "a plain processor", "cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA H200", "cuda:2": "NVIDIA L4"}
ANY = {"device": "auto", "devices": 1, "card": ""}


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"devices": 2, "device": "cpu"}, ""),  # shares of it
        ({"devices": "2", "device": "cuda"}, ""),
        ({"devices": "all", "card": "l4"}, ""),
        ({"device": "cuda:3"}, "device"),
        ({"card": "A100"}, "card"),
        ({"card": "H200", "device": "cuda:2"}, "card"),
        ({"devices": 3, "device": "cuda"}, "devices"),  # the third is not alike
        ({"devices": 2, "card": "L4"}, "devices"),
        ({"devices": 2, "device": "cuda:0"}, "devices"),
    ],
)
def test_devices_that_a_server_has_not_are_pointed_at(fields: dict[str, Any], option: str) -> None:
    pointed = ""
    try:
        check_devices(ANY | fields, NAMED)
    except InvalidRequest as error:
        pointed = error.option
    assert pointed == option
