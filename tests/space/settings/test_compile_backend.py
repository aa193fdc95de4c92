"""The backend of compiling."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.core import Environment, Outcome, Workload
from autotune.probe.device import compile as compiling
from autotune.probe.process.launcher import ProbeHost
from autotune.space.settings.compile_backend import SETTING
from tests.probe.probes import configuration, make_order, measured
from tests.space.settings.fakes import observed


def shown(backend: object, mode: str | None = None, graphs: int = 1) -> object:
    one = observed(graphs=graphs)
    plugin = SimpleNamespace(backend=backend, mode=mode)
    one.trainer.accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin))
    return SETTING.read_back(one)


def test_it_is_read_back_from_what_compiles() -> None:
    assert shown(SimpleNamespace(value="AOT_EAGER"), "default") == "aot_eager"
    assert shown("INDUCTOR", "reduce-overhead") is None
    assert shown("INDUCTOR", graphs=0) is None
    assert shown(SimpleNamespace(value="NO"), "default") is None, "an optimizer compiled itself"


def test_what_can_be_used_is_found_by_asking_and_without_a_compiler_inductor_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = compiling.backends(on_cpu=True)
    assert known["aot_eager"] is None
    assert "no GPU" in (known["cudagraphs"] or "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in (compiling.backends(on_cpu=True)["inductor"] or "")


def test_a_training_runs_with_another_backend(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    asked = configuration(2, precision="fp32", compile="default", compile_backend="aot_eager")
    model = workload_of("bert-mini", sequence_length=16)
    measurement = measured(host, make_order(tmp_path, environment, asked=asked, workload=model, deadline_s=400.0))
    assert measurement.outcome is Outcome.COMPLETED, f"{measurement.reason}\n{measurement.log_tail}"
    assert measurement.settings["compile_backend"] == "aot_eager"
