"""Every optimizer that is installed here is tried for real, and really trained with."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers.training_args import OptimizerNames

from autotune.core import Environment, Outcome, Workload
from autotune.probe.order import Order
from autotune.probe.process.answers import ask
from autotune.probe.process.launcher import ProbeHost
from autotune.space.settings.optimizer import ORDINARY
from tests.conftest import ASKING_S
from tests.probe.probes import bitsandbytes_steps_on_cpu, configuration, make_order, measured

COMPILED = ("adamw_torch_4bit", "adamw_torch_8bit")
"""Their first step is compiled, once for every shape of a parameter."""

SQUARE = {
    "model_type": "llama",
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"), 64),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2),
    "num_hidden_layers": 1,
}
"""A Llama whose matrices have one shape, with as many numbers as an optimizer of 8 bits asks for before it uses them."""

QUICK_ONES = [optimizer.value for optimizer in OptimizerNames if optimizer.value not in COMPILED]
LIBRARIES = {
    **dict.fromkeys(("galore_adamw", "galore_adamw_layerwise"), "galore_torch"),
    **dict.fromkeys(("apollo_adamw", "apollo_adamw_layerwise"), "apollo_torch"),
    **dict.fromkeys(("lomo", "adalomo"), "lomo_optim"),
    **dict.fromkeys(("schedule_free_adamw", "schedule_free_sgd"), "schedulefree"),
    **{"grokadamw": "grokadamw", "stable_adamw": "optimi"},
}


@pytest.fixture(scope="module")
def square(workload_of: Callable[..., Workload], tmp_path_factory: pytest.TempPathFactory) -> Workload:
    path = tmp_path_factory.mktemp("square") / "square.json"
    path.write_text(json.dumps(SQUARE), encoding="utf-8")
    return workload_of(str(path), sequence_length=16, task="causal-lm")


@pytest.fixture(scope="module")
def tried(host: ProbeHost, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What this CPU can do with every optimizer that takes no time to try."""
    request = {"device": "cpu", "optimizers": QUICK_ONES}
    folder = str(tmp_path_factory.mktemp("optimizers"))
    order = Order(kind="capabilities", folder=folder, deadline_s=ASKING_S, request=request)
    return Environment.from_dict(ask(host, order))


def test_each_works_or_says_why_not(tried: Environment) -> None:
    assert set(tried.optimizers) == {*ORDINARY, *QUICK_ONES}
    of_bitsandbytes = ("lion_32bit", "ademamix_8bit", "rmsprop_bnb_8bit")
    for name in ("adagrad", "rmsprop", *(of_bitsandbytes if bitsandbytes_steps_on_cpu() else ())):
        assert tried.optimizers[name] is None, name
    for name, library in LIBRARIES.items():
        if importlib.util.find_spec(library) is None:
            assert "install" in (tried.optimizers[name] or ""), name
    assert "import" in (tried.optimizers["adamw_torch_xla"] or "")


@pytest.mark.parametrize(
    "name",
    [
        *("rmsprop", "lion_8bit", "galore_adamw_layerwise", "lomo", "schedule_free_adamw"),
        pytest.param("adamw_torch_8bit", marks=pytest.mark.nightly),
    ],
)
def test_it_is_really_trained_with(
    host: ProbeHost, tried: Environment, square: Workload, tmp_path: Path, name: str
) -> None:
    if reason := tried.optimizers.get(name):
        pytest.skip(reason)
    alone = name.endswith("_layerwise") or name == "lomo"
    # What an optimizer compiles of itself is no compiling of the model.
    asked = configuration(2, 1 if alone else 2, optimizer=name, compile="none", compile_backend="inductor")
    measurement = measured(host, make_order(tmp_path, tried, asked=asked, workload=square, deadline_s=240.0))
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert (measurement.settings["optimizer"], measurement.settings["compile"]) == (name, "none")
