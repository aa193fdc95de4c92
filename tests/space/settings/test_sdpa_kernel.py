"""SDPA kernel: what is switched, where it means nothing, and a real probe of those a CPU has."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.core import Environment, Measurement, Outcome, Workload
from autotune.probe.process.launcher import ProbeHost
from autotune.space.search_space import SearchSpace
from autotune.space.settings import Context
from autotune.space.settings.sdpa_kernel import NAMES, SETTING
from autotune.space.setup import training_setup
from tests.makers import cpu, gpu, space, workload
from tests.probe.probes import configuration, make_order, measured
from tests.space.settings.fakes import observed


def test_one_kernel_is_allowed_and_all_others_are_not() -> None:
    asked = configuration(4, 1, sdpa_kernel="flash")
    switches = training_setup(asked, gpu(), {}).switches
    assert [name for name, allowed in switches.items() if allowed] == ["enable_flash_sdp"]
    assert len(switches) == 4
    assert training_setup(configuration(4, 1, sdpa_kernel="auto"), gpu(), {}).switches == {}


def test_it_is_read_back_from_torch_s_own_switches() -> None:
    assert SETTING.read_back(observed(sdpa_kernels=frozenset({"math"}))) == "math"
    assert SETTING.read_back(observed(sdpa_kernels=frozenset({"math", "flash", "efficient"}))) == "auto"
    assert SETTING.from_user(Context(gpu(), workload())) == "auto"


def test_kernels_for_gpus_are_ruled_out_on_a_cpu() -> None:
    assert {value for value in NAMES if SETTING.unavailable(value, Context(cpu(), workload()))} == {
        "efficient",
        "cudnn",
    }
    assert not any(SETTING.unavailable(value, Context(gpu(), workload())) for value in NAMES)


def test_it_means_nothing_beside_another_attention() -> None:
    made: SearchSpace = space(attention=("sdpa", "eager"), sdpa_kernel=("auto", "math"), micro_batch_size=(1,))
    pairs = {(item.values["attention"], item.values["sdpa_kernel"]) for item in made}
    assert pairs == {("sdpa", "auto"), ("sdpa", "math"), ("eager", "auto")}


@pytest.mark.slow
def test_a_probe_trains_with_it_and_what_the_kernel_cannot_do_is_unsupported(
    train: Callable[..., Measurement],
    host: ProbeHost,
    environment: Environment,
    workload_of: Callable[..., Workload],
    tmp_path: Path,
) -> None:
    """A CPU's flash kernel knows no dropout, which gpt2 has."""
    train("llama-mini", attention="sdpa", sdpa_kernel="flash")
    asked = configuration(2, 1, attention="sdpa", sdpa_kernel="flash")
    order = make_order(tmp_path, environment, asked=asked, workload=workload_of("gpt2-mini", sequence_length=16))
    measurement = measured(host, order)
    assert measurement.outcome is Outcome.UNSUPPORTED
    assert "an attention kernel cannot do this" in measurement.reason
