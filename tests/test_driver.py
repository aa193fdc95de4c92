"""Real probes and commands on a machine with NVIDIA's driver whose card is lost, or that torch cannot use."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from autotune.core import Environment, InvalidRequest, Measurement, Outcome, Workload
from autotune.core.request import tuning_request
from autotune.core.slot import Slot
from autotune.core.warning import WarningKind
from autotune.probe import ProbeOptions
from autotune.probe.device import nvml
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_environment
from autotune.probe.runner import LiveProbe
from tests.nvidia import GIB, H100, Machine
from tests.probe.probes import QUICK, configuration

pytestmark = pytest.mark.nightly


@pytest.fixture
def machine(machine_with_driver: Machine) -> Machine:
    """With two cards of a kind."""
    machine_with_driver.plug(H100, H100)
    return machine_with_driver


@pytest.fixture
def own_host(machine: Machine) -> Iterator[ProbeHost]:
    """A host that was started on this machine: the loader reads its path when a process starts."""
    with ProbeHost() as host:
        yield host


# Probes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(
    own_host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> Callable[[], Measurement]:
    """A probe on the CPU that takes the first card for its device in all that is read of NVML."""
    card = nvml.choose_device("cuda")
    assert card is not None
    workload = workload_of("gpt2-mini", sequence_length=16)
    watched = replace(environment, device_uuid=card.uuid, device_uuids=(card.uuid,))
    used = nvml.usage_of(card)
    live = LiveProbe(
        own_host, watched, workload, {}, GIB, lambda *_: tmp_path, timings=(QUICK, QUICK), device_used=used
    )
    return lambda: live(configuration(4), ProbeOptions(Slot(), 120.0))


WELL = {"temperature_c": 60, "sm_clock_mhz": 1900, "power_w": 640.0}
AT_START = {f"{name}_at_start": value for name, value in WELL.items()}
WHOLE = {**WELL, **AT_START, "throttle_reasons": [], "sm_clock_max_mhz": 1980, "power_limit_w": 700.0}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        ({}, WHOLE),
        # A process finds its card by the uuid, and reads eight values before and after the steps.
        ({"0.lost_after": 10}, AT_START),
        ({"0.lost_after": 0}, {}),
        ({"0.error": pynvml.NVML_ERROR_NO_PERMISSION}, {}),
        ({"error.nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, {}),
    ],
)
def test_a_probe_keeps_its_speed_and_knows_of_the_card_what_was_answered(
    machine: Machine, measured: Callable[[], Measurement], values: dict[str, int], facts: dict[str, Any]
) -> None:
    machine.set(values)
    measurement = measured()
    assert measurement.outcome is Outcome.COMPLETED, measurement.log_tail
    assert measurement.step_time_s
    state = measurement.system_state
    assert {name: state[name] for name in WHOLE if name in state} == facts
    assert measurement.joules is None
    assert not [
        w for w in measurement.observed_warnings if w.kind.startswith("card") or w.kind is WarningKind.SHARED_DEVICE
    ]


# Commands -----------------------------------------------------------------------------------------------------------


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "autotune", *words]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False, timeout=600)


def test_a_torch_that_cannot_use_the_card_is_named_in_one_line(own_host: ProbeHost) -> None:
    with pytest.raises(InvalidRequest, match=f"torch {torch.__version__[:4]}.* cannot use the GPU: ") as caught:
        read_environment(own_host, tuning_request("bert-mini", 4, device="cuda"), nvml.choose_device("cuda"))
    assert "\n" not in str(caught.value)
    request = tuning_request("bert-mini", 4, device="auto")
    environment, card = read_environment(own_host, request, nvml.choose_device("auto"))
    assert (environment.device, card) == ("cpu", None)
    assert environment.unused_gpu == caught.value.message


SMALL = ("-b", "4", "--sequence-length", "16", "--search-space", "quick", "--n-trials", "2")


def test_a_search_says_that_it_measured_the_cpu_of_a_machine_with_a_gpu(machine: Machine, tmp_path: Path) -> None:
    done = command("search", "bert-mini", *SMALL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"The CPU was measured: torch {torch.__version__} cannot use the GPU: " in " ".join(done.stdout.split())
    assert done.stderr == ""


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NO_PERMISSION])
@pytest.mark.parametrize("words", [["doctor"], ["search", "bert-mini", *SMALL]], ids=["doctor", "search"])
def test_a_command_for_a_card_that_cannot_be_opened_ends_in_one_line(
    machine: Machine, tmp_path: Path, words: list[str], error: int
) -> None:
    machine.set({"0.error": error, "1.error": error})
    done = command(*words, "--device", "cuda", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(pynvml.NVMLError(error)) in done.stderr
