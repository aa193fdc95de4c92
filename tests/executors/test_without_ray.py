"""Without the extra, an executor of a Ray cluster is refused with how to install it."""

import sys

import pytest

from autotune.core import InvalidRequest
from autotune.executors.ray import connected, most_cores


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
