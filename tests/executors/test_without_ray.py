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
from autotune.executors.ray_host import Cluster, OutOfMemory, RayHost
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


class RayError(Exception):
    """In the place of Ray's."""


class OutOfMemoryError(RayError):
    """In the place of Ray's error of an actor that its memory monitor ended."""


ERRORS = SimpleNamespace(RayError=RayError, OutOfMemoryError=OutOfMemoryError)


class Host:
    """The host of a device that reads model and data, or is lost meanwhile."""

    made: ClassVar[list["Host"]] = []
    errors: ClassVar[list[Exception | None]] = []

    def __init__(self, *_: Any) -> None:
        self.number, self.is_closed = len(self.made), False
        self.made.append(self)
        self.facts = {"name": f"device {self.number}", "hardware": {}}

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
        ([None, OutOfMemory("out of memory")], ["device 0"]),
        ([DIED, OutOfMemory("out of memory")], []),
    ],
)
def test_a_device_that_is_lost_while_it_is_prepared_is_left_out(
    errors: list[Exception | None], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "RayHost", Host)
    monkeypatch.setattr(Host, "made", [])
    monkeypatch.setattr(Host, "errors", errors)
    cluster = Cluster(SimpleNamespace(exceptions=ERRORS), "head:6379")
    request = tuning_request("bert-mini", 8, device="cpu", devices=2)
    with contextlib.ExitStack() as stack:
        if names:
            executors = stack.enter_context(ray_executors(cluster, request, 2))
            assert [executor.name for executor in executors] == names
        else:
            with pytest.raises(SearchFailed, match=r"All 2 device\(s\).*: out of memory\. See"):
                stack.enter_context(ray_executors(cluster, request, 2))
    assert [host.is_closed for host in Host.made] == [True, True]


def test_a_device_that_the_memory_monitor_ends_is_lost_whatever_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it takes the place of another one and reads the model, and while its card is looked at before a probe."""

    def get(_: Any) -> Any:
        raise OutOfMemoryError("Task was killed due to the node running low on memory.\nA long story.")

    def launch(self: RayHost) -> None:
        question = SimpleNamespace(remote=lambda *_: None)
        self._actor = SimpleNamespace(facts=question, used=question)

    fake = SimpleNamespace(exceptions=ERRORS, wait=lambda references, timeout: (references, []), get=get)
    monkeypatch.setattr(RayHost, "launch", launch)
    monkeypatch.setattr(Cluster, "is_there", lambda _: True)
    host = RayHost(Cluster(fake, "head:6379"), b"", "cuda", 1)
    host.launch()
    with pytest.raises(ExecutorLost, match="out of memory"):
        host.used()
    assert not host.restart()
