"""Likeness: devices that differ in a fact are refused with it."""

import os

import pytest

from autotune.core import InvalidRequest
from autotune.executors import Executor
from autotune.executors.compatibility import check_same_hardware, hardware_facts
from autotune.executors.local import LocalHost
from tests.makers import gpu, workload


def executors(*facts: dict[str, int]) -> list[Executor]:
    return [Executor(f"cuda:{index}", LocalHost(), gpu(), workload(), own) for index, own in enumerate(facts)]


def test_devices_with_equal_facts_are_alike() -> None:
    check_same_hardware(executors({"power_limit_mw": 700000}, {"power_limit_mw": 700000}))


def test_a_device_that_differs_is_refused_with_the_difference() -> None:
    with pytest.raises(InvalidRequest, match=r"cuda:1 .*cuda:0: power_limit_mw 400000, not 700000; ecc 0, not None"):
        check_same_hardware(executors({"power_limit_mw": 700000}, {"power_limit_mw": 400000, "ecc": 0}))


def test_a_cpu_has_its_share_and_its_niceness() -> None:
    facts = hardware_facts(None, [0])
    assert facts["cores"] == 1
    assert facts["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert facts["cpu"]
