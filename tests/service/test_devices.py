"""The devices that a server lends."""

import pytest

from autotune.core import InvalidRequest
from autotune.probe.device import nvml
from autotune.service import devices
from autotune.service.devices import Devices

CARDS = [nvml.Card(index, f"GPU-{index}", "NVIDIA H200", 2) for index in range(2)]


def test_a_machine_without_a_gpu_lends_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_cards", list)
    lent = Devices()
    assert lent.names == ("cpu",)
    assert lent.devices[0].card


def test_all_gpus_are_lent_by_default_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nvml, devices):
        monkeypatch.setattr(module, "visible_cards", lambda: CARDS)
    lent = Devices()
    assert [(device.name, device.card) for device in lent.devices] == [
        ("cuda:0", "NVIDIA H200"),
        ("cuda:1", "NVIDIA H200"),
    ]
    assert lent.free([]) == ["cuda:0", "cuda:1"]
    assert lent.free(["cuda:0", None]) == ["cuda:1"]
    assert Devices(["cuda", "cpu"]).names == ("cuda:0", "cpu")
    with pytest.raises(InvalidRequest, match="cuda:2"):
        Devices(["cuda:2"])


@pytest.mark.parametrize("names", [["cpu", "cpu"], ["cuda", "cuda:0"], ["auto"], ["gpu"]])
def test_names_that_are_no_devices_or_come_twice_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=names[-1]):
        Devices(names)
