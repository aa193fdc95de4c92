"""Compiling: as a setting, and in real probes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import compile_regions

from autotune.core import Configuration, Environment, Outcome, Workload
from autotune.probe.device import compile as compiling
from autotune.probe.process.launcher import ProbeHost
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS, Context, Observed
from autotune.space.settings.compile import SETTING
from autotune.space.setup import training_setup
from tests.makers import FIELDS, cpu, gpu, workload
from tests.probe.probes import configuration, make_order, measured
from tests.space.settings.fakes import observed

WITH = (*FIELDS, "torch_compile", "torch_compile_backend", "torch_compile_mode")
MACHINE = cpu(training_argument_fields=WITH, compile_backends={"inductor": None, "aot_eager": None})
CARD = gpu(training_argument_fields=WITH, compile_backends={"inductor": None})
OLD_CARD = replace(CARD, precisions={**CARD.precisions, "tf32": "needs an Ampere GPU"})
SMALL = {
    **{"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 16},
}
"""One layer: each further one takes seconds to compile, and nothing else."""


def compiled(graphs: int = 3, **plugin: Any) -> Observed:
    """A training in which torch compiled so many graphs; accelerate's plugin has these attributes."""
    state = SimpleNamespace(dynamo_plugin=SimpleNamespace(**plugin))
    return observed(graphs=graphs, accelerator=SimpleNamespace(state=state))


def fields(environment: Environment, base: dict[str, object] | None = None, **settings: str) -> dict[str, object]:
    return training_setup(
        Configuration(2, 1, settings=tuple(settings.items())), environment, base or {}
    ).training_arguments


@pytest.mark.parametrize(
    ("base", "value"),
    [
        ({}, "none"),
        ({"torch_compile": True}, "default"),
        ({"torch_compile_backend": "aot_eager"}, "default"),
        ({"torch_compile_mode": "max-autotune-no-cudagraphs"}, "max_autotune"),
        ({"torch_compile_mode": "max-autotune"}, "max_autotune_graphs"),
    ],
)
def test_a_mode_or_a_backend_of_the_user_s_implies_it(base: dict[str, object], value: str) -> None:
    assert SETTING.from_user(Context(MACHINE, workload(), base)) == value


def test_a_mode_is_inductor_s_whatever_backend_the_user_names() -> None:
    made = fields(CARD, {"torch_compile_backend": "aot_eager"}, compile="reduce_overhead")
    assert made["torch_compile_mode"] == "reduce-overhead"
    assert made["torch_compile_backend"] == "inductor"


@pytest.mark.parametrize(
    ("base", "precision", "tf32"), [({}, "tf32", True), ({"tf32": True}, "bf16", True), ({}, "bf16", False)]
)
def test_it_does_not_change_the_precision(base: dict[str, object], precision: str, tf32: bool) -> None:
    assert fields(CARD, base, compile="default", precision=precision)["tf32"] is tf32


@pytest.mark.parametrize("value", [value for value in SETTING.values if value not in ("none", "regional", "default")])
def test_each_mode_is_one_of_torch_s_and_is_read_back_from_what_was_compiled(value: str) -> None:
    mode = fields(CARD, compile=value)["torch_compile_mode"]
    options = torch._inductor.list_mode_options(mode)
    assert options.get("triton.cudagraphs", False) == (value in ("reduce_overhead", "max_autotune_graphs"))
    shown = compiled(mode=mode)
    assert SETTING.read_back(shown) == value
    assert SETTING.read_back(replace(shown, graphs=0)) == "none"


def test_regional_is_default_with_a_variable_of_its_process() -> None:
    asked = Configuration(2, 1, settings=(("compile", "regional"),))
    plain = Configuration(2, 1, settings=(("compile", "default"),))
    assert training_setup(asked, CARD, {}).training_arguments == training_setup(plain, CARD, {}).training_arguments
    assert training_setup(asked, CARD, {}).process_environment == {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "true"}
    assert training_setup(plain, CARD, {}).process_environment == {}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # of what torch.compile imports
@pytest.mark.parametrize(("regional", "value"), [(True, "regional"), (False, "default")])
def test_blocks_that_were_compiled_are_told_from_a_whole_model(regional: bool, value: str) -> None:
    model = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]))
    shown = compiled(backend="inductor", mode="default")
    shown.trainer.model_wrapped = compile_regions(model) if regional else torch.compile(model)
    assert SETTING.read_back(shown) == value


@pytest.mark.parametrize("setting", [{"compile": "reduce_overhead"}, {"compile": "max_autotune_graphs"}])
def test_cuda_graphs_are_used_where_nothing_accumulates(setting: dict[str, str]) -> None:
    made = space(micro_batch_size=(4, 8), compile=("none", *setting.values()))
    assert [item.micro_batch_size for item in made if item.values["compile"] != "none"] == [8]
    assert "gradients" in made.conflict({"micro_batch_size": 4, **setting})


def test_a_backend_of_cuda_graphs_is_used_where_nothing_accumulates_and_forbids_nothing_where_nothing_is_compiled() -> (
    None
):
    made = space(micro_batch_size=(4, 8), compile=("none", "default"), compile_backend=("cudagraphs",))
    found = {(item.values["compile"], item.micro_batch_size) for item in made}
    assert found == {("none", 4), ("none", 8), ("default", 8)}


@pytest.mark.parametrize(("environment", "left"), [(CARD, False), (OLD_CARD, True), (MACHINE, True)])
def test_float32_is_not_compiled_where_accelerate_would_switch_tf32_on(environment: Environment, left: bool) -> None:
    rules = SETTING.forbidden_on(environment)
    made = replace(
        space(micro_batch_size=(8,), compile=("none", "default"), precision=("fp32", "bf16")),
        device_rules={"compile": rules} if rules else {},
    )
    pairs = {(item.values["compile"], item.values["precision"]) for item in made}
    assert pairs == {("none", "fp32"), ("none", "bf16"), ("default", "bf16")} | (
        {("default", "fp32")} if left else set()
    )
    if not left:
        assert "TF32" in made.conflict({"compile": "default", "precision": "fp32"})


@pytest.mark.parametrize(("environment", "precision"), [(CARD, "tf32"), (OLD_CARD, "fp32"), (MACHINE, "fp32")])
def test_compiled_arguments_without_a_precision_mean_the_one_that_accelerate_trains_in(
    environment: Environment, precision: str
) -> None:
    base = {"torch_compile": True, "tf32": False}
    assert SETTINGS["precision"].from_user(Context(environment, workload(), base)) == precision
    assert SETTINGS["precision"].from_user(Context(environment, workload(), {**base, "bf16": True})) == "bf16"
    assert SETTINGS["precision"].from_user(Context(environment, workload(), {"tf32": False})) == "fp32"


def space(**values: tuple[Any, ...]) -> SearchSpace:
    settings = {name: known[0] for name, known in values.items() if name != "micro_batch_size"}
    return SearchSpace("test", 8, values, Configuration.exact(8, 8, settings))


def test_what_optimizers_and_attentions_compile_for_themselves_is_none_of_it() -> None:
    for backend, value in (("NO", "none"), ("INDUCTOR", "default")):
        assert SETTING.read_back(compiled(backend=SimpleNamespace(value=backend), mode="default")) == value


def test_what_cannot_compile_is_unavailable_with_its_reason() -> None:
    assert SETTING.unavailable("default", Context(MACHINE, workload())) is None
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert "no field" in str(SETTING.unavailable("default", Context(cpu(), workload())))
    without = replace(MACHINE, compile_backends={"inductor": "there is no C++ compiler"})
    assert str(SETTING.unavailable("max_autotune", Context(without, workload()))) == "there is no C++ compiler"
    assert "CUDA graphs" in str(SETTING.unavailable("reduce_overhead", Context(MACHINE, workload())))
    assert SETTING.unavailable("reduce_overhead", Context(CARD, workload())) is None


@pytest.mark.nightly
@pytest.mark.parametrize(("value", "backend"), [("default", "inductor"), ("regional", None)])
def test_a_compiled_training_is_measured_and_its_next_round_finds_the_kernels_ready(
    value: str,
    backend: str | None,
    host: ProbeHost,
    environment: Environment,
    workload_of: Callable[..., Workload],
    tmp_path: Path,
) -> None:
    if reason := SETTING.unavailable(value, Context(environment, workload())):
        pytest.skip(f"compiling: {reason}")
    (tmp_path / "small.json").write_text(json.dumps(SMALL | {"num_hidden_layers": 2}), encoding="utf-8")
    model = workload_of(str(tmp_path / "small.json"), sequence_length=16, task="masked-lm")
    asked = configuration(
        2, accumulation=2, compile=value, precision="bf16", **({"compile_backend": backend} if backend else {})
    )
    order = make_order(tmp_path, environment, asked=asked, workload=model, deadline_s=500.0)
    cold = measured(host, replace(order, confirmation=1))
    assert cold.outcome is Outcome.COMPLETED, f"{cold.reason}\n{cold.log_tail}"
    assert (cold.settings["compile"], cold.settings["precision"]) == (value, "bf16")
    assert cold.settings.get("compile_backend") == backend
    assert cold.compile_s > 1.0
    assert cold.recompiled_graphs == 0
    warm = measured(host, replace(order, confirmation=2))
    assert warm.outcome is Outcome.COMPLETED, warm.reason
    assert warm.compile_s < cold.compile_s


def test_the_backend_is_read_back_from_what_compiles() -> None:
    read_back = SETTINGS["compile_backend"].read_back
    assert read_back(compiled(backend=SimpleNamespace(value="AOT_EAGER"), mode="default")) == "aot_eager"
    assert read_back(compiled(backend="INDUCTOR", mode="reduce-overhead")) is None
    assert read_back(compiled(graphs=0, backend="INDUCTOR")) is None
    assert read_back(compiled(backend=SimpleNamespace(value="NO"))) is None, "an optimizer compiled itself"


def test_what_can_be_used_is_found_by_asking_and_without_a_compiler_inductor_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = compiling.backends(on_cpu=True)
    assert known["aot_eager"] is None
    assert "no GPU" in (known["cudagraphs"] or "")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in (compiling.backends(on_cpu=True)["inductor"] or "")
