"""Compiling: as a lever, and in real probes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.configuration import Configuration
from autotune.environment import Environment
from autotune.levers.compile import LEVER
from autotune.measurement import Outcome
from autotune.probe.launcher import ProbeHost
from autotune.training_arguments import training_arguments
from autotune.workload import Workload
from tests.levers.fakes import observed
from tests.makers import FIELDS, cpu, gpu, workload
from tests.probe.probes import configuration, make_order, measured

WITH = (*FIELDS, "torch_compile", "torch_compile_backend", "torch_compile_mode")
MACHINE = cpu(training_argument_fields=WITH, compile_backends={"inductor": None, "aot_eager": None})
CARD = gpu(training_argument_fields=WITH, compile_backends={"inductor": None})
SMALL = {
    **{"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 16},
}
"""One layer: each further one takes seconds to compile, and nothing else."""


def fields(environment: Environment, base: dict[str, object] | None = None, **levers: str) -> dict[str, object]:
    return training_arguments(Configuration(2, 1, levers=tuple(levers.items())), environment, base or {})


@pytest.mark.parametrize(
    ("base", "value"),
    [
        ({}, "none"),
        ({"torch_compile": True}, "default"),
        ({"torch_compile_backend": "aot_eager"}, "default"),
        ({"torch_compile_mode": "max-autotune"}, "max_autotune"),
    ],
)
def test_a_mode_or_a_backend_of_the_user_s_implies_it(base: dict[str, object], value: str) -> None:
    assert LEVER.own(base, MACHINE, workload()) == value


def test_none_takes_mode_and_backend_back_because_they_would_switch_it_on() -> None:
    made = fields(CARD, {"torch_compile_mode": "max-autotune", "torch_compile_backend": "inductor"}, compile="none")
    assert made["torch_compile"] is False
    assert made["torch_compile_mode"] is None
    assert made["torch_compile_backend"] is None


def test_a_mode_is_inductor_s_whatever_backend_the_user_names() -> None:
    made = fields(CARD, {"torch_compile_backend": "aot_eager"}, compile="reduce_overhead")
    assert made["torch_compile_mode"] == "reduce-overhead"
    assert made["torch_compile_backend"] == "inductor"


@pytest.mark.parametrize(
    ("base", "precision", "tf32"),
    [({}, None, False), ({"tf32": True}, None, True), ({}, "tf32", True), ({}, "fp32", False), ({}, "bf16", False)],
)
def test_it_does_not_change_the_precision(base: dict[str, object], precision: str | None, tf32: bool) -> None:
    made = fields(CARD, base, compile="default", **({"precision": precision} if precision else {}))
    assert made["tf32"] is tf32


def test_it_is_read_back_from_what_was_compiled() -> None:
    trainer = observed().trainer
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=SimpleNamespace(mode="max-autotune")))
    shown = replace(observed(), trainer=trainer, graphs=3)
    assert LEVER.read_back(shown) == "max_autotune"
    assert LEVER.read_back(replace(shown, graphs=0)) == "none"


def test_what_optimizers_and_attentions_compile_for_themselves_is_none_of_it() -> None:
    trainer = observed().trainer
    plugin = SimpleNamespace(backend=SimpleNamespace(value="NO"), mode="default")
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(dynamo_plugin=plugin))
    shown = replace(observed(), trainer=trainer, graphs=3)
    assert LEVER.read_back(shown) == "none"
    plugin.backend = SimpleNamespace(value="INDUCTOR")
    assert LEVER.read_back(shown) == "default"


def test_what_cannot_compile_is_unavailable_with_its_reason() -> None:
    assert LEVER.unavailable("default", MACHINE, workload()) is None
    assert LEVER.unavailable("none", cpu(), workload()) is None
    assert "no field" in (LEVER.unavailable("default", cpu(), workload()) or "")
    without = replace(MACHINE, compile_backends={"inductor": "there is no C++ compiler"})
    assert LEVER.unavailable("max_autotune", without, workload()) == "there is no C++ compiler"
    assert "CUDA graphs" in (LEVER.unavailable("reduce_overhead", MACHINE, workload()) or "")
    assert LEVER.unavailable("reduce_overhead", CARD, workload()) is None


def test_its_probes_are_expected_to_take_longer() -> None:
    assert LEVER.seconds("none") == 0
    assert 0 < LEVER.seconds("default") < LEVER.seconds("max_autotune")


def test_a_compiled_training_is_measured_and_its_confirmation_finds_the_kernels_ready(
    host: ProbeHost, environment: Environment, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    if reason := LEVER.unavailable("default", environment, workload()):
        pytest.skip(f"compiling: {reason}")
    (tmp_path / "small.json").write_text(json.dumps(SMALL), encoding="utf-8")
    model = workload_of(str(tmp_path / "small.json"), sequence_length=16, task="masked-lm")
    asked = configuration(2, accumulation=2, compile="default", compile_backend="inductor")
    order = make_order(
        tmp_path,
        environment,
        asked=asked,
        workload=model,
        deadline_s=500.0,
        allowed_bytes=2 << 30,
    )
    cold = measured(host, order)
    assert cold.outcome is Outcome.COMPLETED, f"{cold.reason}\n{cold.log_tail}"
    assert cold.settings["compile"] == "default"
    assert cold.settings["compile_backend"] == "inductor"
    assert cold.settings["precision"] == "fp32"
    assert cold.compile_s > 1.0
    assert cold.recompiled_graphs == 0
    warm = measured(host, replace(order, confirmation=1))
    assert warm.outcome is Outcome.COMPLETED, warm.reason
    assert warm.compile_s < cold.compile_s
    plain = measured(host, replace(order, **vars(_without(order, environment))))
    assert plain.settings["compile"] == "none"
    assert plain.compile_s == 0.0


def _without(order: object, environment: Environment) -> SimpleNamespace:
    """The fields of an order that compiles nothing."""
    asked = configuration(2, accumulation=2, compile="none", compile_backend="inductor")
    return SimpleNamespace(configuration=asked, training_arguments=training_arguments(asked, environment, {}))
