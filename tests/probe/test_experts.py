"""Mixtures of experts, trained for real with each implementation that a CPU knows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.probe.process.launcher import ProbeHost
from autotune.space.settings import Context
from autotune.space.settings.experts import NAMES, SETTING
from tests.probe.probes import configuration, make_order, measured


@pytest.mark.parametrize(
    "value", ["grouped_mm", *(pytest.param(value, marks=pytest.mark.nightly) for value in ("eager", "batched_mm"))]
)
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


def test_a_model_says_whether_it_has_experts_to_choose_for(workload_of: Callable[..., Workload]) -> None:
    mixed, plain = workload_of("moe-mini", sequence_length=16), workload_of("gpt2-mini", sequence_length=16)
    assert mixed.expert in mixed.experts
    assert mixed.experts["eager"] is None
    assert set(mixed.experts) <= set(NAMES)
    assert not plain.expert
    assert not plain.experts


def test_a_model_without_experts_trains_as_ever_where_they_are_a_setting(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    workload = workload_of("gpt2-mini", sequence_length=16)
    order = make_order(tmp_path, environment, asked=configuration(2, experts="none"), workload=workload)
    measurement = measured(host, order)
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert measurement.settings["experts"] is None
