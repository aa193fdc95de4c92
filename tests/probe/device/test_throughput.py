"""In which order a device's rates are measured."""

from pathlib import Path

import pytest

from autotune.core import Environment
from autotune.probe.device import throughput
from autotune.probe.order import Order
from tests.makers import cpu, gpu


@pytest.mark.parametrize(("environment", "warming"), [(gpu(), [throughput.WARMING_S]), (cpu(), [])])
def test_a_gpu_has_reached_the_clock_that_it_keeps_before_anything_is_measured(
    environment: Environment, warming: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []

    def rate(precision: str, device: str, seconds: float = throughput.SECONDS) -> float:
        measured.append(seconds)
        return 1e12

    monkeypatch.setattr(throughput, "_rate", rate)
    request = {"precisions": ["fp32", "bf16", "bf16_weights"]}
    order = Order(kind="rates", folder="", deadline_s=1.0, environment=environment, request=request)
    assert throughput.run(order, b"", tmp_path) == dict.fromkeys(request["precisions"], 1e12)
    assert measured == [*warming, throughput.SECONDS, throughput.SECONDS]
