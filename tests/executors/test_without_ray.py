"""Without the extra, an executor of a Ray cluster is refused with how to install it."""

import contextlib
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from autotune.core import InvalidRequest
from autotune.core.errors import SearchFailed
from autotune.core.request import tuning_request
from autotune.executors import ExecutorLost, ray
from autotune.executors.ray import connected, most_cores, ray_executors
from autotune.executors.ray_host import Cluster
from tests.makers import cpu, workload


@pytest.mark.parametrize(
    ("nodes", "devices", "of_gpus", "cores"),
    [
        ([{"CPU": 8}, {"CPU": 8}], 1, False, 8),
        ([{"CPU": 8}, {"CPU": 8}], 4, False, 4),
        ([{"CPU": 4}, {"CPU": 32, "GPU": 4}], 4, True, 8),
        ([{"CPU": 16, "GPU": 2}, {"CPU": 32, "GPU": 2}], 4, True, 8),
        ([{"CPU": 1}], 2, False, 1),
        ([], 1, True, 1),
    ],
)
def test_a_device_has_as_many_cores_as_its_node_can_give(
    nodes: list[dict[str, float]], devices: int, of_gpus: bool, cores: int
) -> None:
    assert most_cores(nodes, devices, of_gpus) == cores


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidRequest, match=r"hf-autotune\[ray\]"), connected("head:6379"):
        pass


class Lost(Exception):
    """In the place of Ray's error of an actor that its memory monitor ended."""


class Host:
    """The host of a device that reads model and data, or is lost meanwhile."""

    made: ClassVar[list["Host"]] = []
    errors: ClassVar[list[Exception | None]] = []

    def __init__(self, *_: Any) -> None:
        self.number, self.is_closed = len(self.made), False
        self.made.append(self)
        self.facts = {"name": f"device {self.number}", "likeness": {}}

    def launch(self) -> None:
        pass

    def start(self, seconds: float) -> None:
        pass

    def read(self, _: Any) -> Any:
        if error := self.errors[self.number]:
            raise error
        return cpu(), workload()

    def close(self) -> None:
        self.is_closed = True


DIED = ExecutorLost("ActorDiedError: The actor died unexpectedly")


@pytest.mark.parametrize(
    ("errors", "names"),
    [
        ([None, None], ["device 0", "device 1"]),
        ([DIED, None], ["device 1"]),
        ([None, Lost("out of memory\nwith a long story")], ["device 0"]),
        ([DIED, Lost("out of memory\nwith a long story")], []),
    ],
)
def test_a_device_that_is_lost_while_it_is_prepared_is_left_out(
    errors: list[Exception | None], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "RayHost", Host)
    monkeypatch.setattr(Host, "made", [])
    monkeypatch.setattr(Host, "errors", errors)
    cluster = Cluster(SimpleNamespace(exceptions=SimpleNamespace(OutOfMemoryError=Lost)), "head:6379")
    request = tuning_request("bert-mini", 8, device="cpu", devices=2)
    with contextlib.ExitStack() as stack:
        if names:
            executors = stack.enter_context(ray_executors(cluster, request, 2))
            assert [executor.name for executor in executors] == names
        else:
            with pytest.raises(SearchFailed, match=r"All 2 device\(s\).*: out of memory\. See") as error:
                stack.enter_context(ray_executors(cluster, request, 2))
            assert "\n" not in str(error.value)
    assert [host.is_closed for host in Host.made] == [True, True]
