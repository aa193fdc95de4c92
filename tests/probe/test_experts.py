"""Mixtures of experts, trained for real with each implementation that a CPU knows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.probe.process.launcher import ProbeHost
from autotune.space.settings import Context
from autotune.space.settings.experts import SETTING
from tests.probe.probes import configuration, make_order, measured


@pytest.mark.parametrize("value", ["grouped_mm", pytest.param("batched_mm", marks=pytest.mark.nightly)])
def test_a_mixture_of_experts_trains_with_what_was_asked(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path, value: str
) -> None:
    workload = workload_of("moe-mini", sequence_length=16)
    if reason := SETTING.unavailable(value, Context(environment, workload)):
        pytest.skip(reason)
    asked = configuration(2, 2, experts=value)
    measurement = measured(host, make_order(tmp_path, environment, asked=asked, workload=workload))
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert measurement.settings["experts"] == value
