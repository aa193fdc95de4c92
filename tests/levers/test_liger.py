"""Liger's kernels."""

import importlib.util
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autotune.environment import Environment
from autotune.levers.liger import LEVER, LOSS
from autotune.measurement import Outcome
from autotune.probe import kernels
from autotune.probe.device import visible_cards
from autotune.probe.launcher import ProbeHost
from autotune.training_arguments import training_arguments
from autotune.workflow import examine
from autotune.workload import Workload
from tests.levers.fakes import observed
from tests.makers import FIELDS, cpu, gpu, workload
from tests.probe.probes import configuration, make_order, measured

CARD = gpu(training_argument_fields=(*FIELDS, "use_liger_kernel", "liger_kernel_config"), liger=None)
KNOWN = workload(liger={"kernels": None, "kernels_and_loss": None})


class Norm(torch.nn.Module):
    """Stands for a layer of the model's own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def ligers(x: torch.Tensor) -> torch.Tensor:
    """Stands for a function of Liger's, which binds it to modules that exist already."""
    return x


ligers.__module__ = "liger_kernel.transformers.rms_norm"


def model(of_a_layer: bool = False, of_itself: bool = False) -> torch.nn.Module:
    made = torch.nn.Sequential(Norm())
    if of_a_layer:
        made[0].forward = types.MethodType(lambda self, x: ligers(x), made[0])
        made[0].forward.__func__.__module__ = ligers.__module__
    if of_itself:
        made.forward = types.MethodType(ligers, made)
    return made


def test_the_user_s_own_tells_whether_the_loss_is_liger_s_too() -> None:
    assert LEVER.own({}, CARD, KNOWN) == "none"
    assert LEVER.own({"use_liger_kernel": True}, CARD, KNOWN) == "kernels_and_loss"
    assert LEVER.own({"use_liger_kernel": True, "liger_kernel_config": {LOSS: False}}, CARD, KNOWN) == "kernels"


def test_none_takes_the_user_s_choice_of_kernels_back() -> None:
    base = {"use_liger_kernel": True, "liger_kernel_config": {LOSS: False}}
    made = training_arguments(configuration(2, liger="none"), CARD, base)
    assert made["use_liger_kernel"] is False
    assert made["liger_kernel_config"] is None


@pytest.mark.parametrize(
    ("running", "value"),
    [
        (model(), "none"),
        (model(of_a_layer=True), "kernels"),
        (model(of_a_layer=True, of_itself=True), "kernels_and_loss"),
    ],
)
def test_it_is_read_back_from_whose_code_runs(running: torch.nn.Module, value: str) -> None:
    assert LEVER.read_back(observed(model=running)) == value


def test_it_is_read_back_through_mixed_precision_which_wraps_the_model_s_forward() -> None:
    running = model(of_a_layer=True, of_itself=True)
    running._original_forward = running.forward
    running.forward = types.MethodType(lambda self, x: x, running)
    assert LEVER.read_back(observed(model=running)) == "kernels_and_loss"


def test_what_cannot_run_is_unavailable_with_its_reason() -> None:
    assert LEVER.unavailable("kernels_and_loss", CARD, KNOWN) is None
    assert LEVER.unavailable("none", cpu(), workload()) is None
    assert "next token" in (LEVER.unavailable("kernels_and_loss", CARD, workload(task="masked-lm")) or "")
    none = workload(liger={"kernels": "it has no kernels for models of type gpt2"})
    assert LEVER.unavailable("kernels", CARD, none) == "it has no kernels for models of type gpt2"
    bare = gpu(training_argument_fields=CARD.training_argument_fields, liger="not installed: pip install liger-kernel")
    assert "pip install" in (LEVER.unavailable("kernels", bare, KNOWN) or "")


def test_a_cpu_cannot_run_triton_s_kernels() -> None:
    assert "GPU" in (kernels.why_not_here(on_cpu=True) or "")


def test_liger_s_own_table_says_for_which_models_it_has_kernels() -> None:
    made = kernels.made_for(SimpleNamespace(model_type="bert"))
    assert set(made) == {"kernels", "kernels_and_loss"}
    assert all(made.values()), "there are none for BERT, or liger-kernel is not installed"


@pytest.mark.gpu
@pytest.mark.parametrize("value", ["none", "kernels", "kernels_and_loss"])
def test_a_training_on_a_card_runs_them(
    value: str, host: ProbeHost, workload_of: Callable[..., Workload], tmp_path: Path
) -> None:
    if not visible_cards() or torch.version.cuda is None:
        pytest.skip("needs a CUDA GPU and a torch built for it")
    if importlib.util.find_spec("liger_kernel") is None:
        pytest.skip("liger-kernel is not installed")
    card: Environment = examine("cuda")
    known = workload_of("llama-mini", sequence_length=64)
    if reason := LEVER.unavailable(value, card, known):
        pytest.skip(reason)
    order = make_order(tmp_path, card, asked=configuration(4, liger=value), workload=known, deadline_s=240.0)
    measurement = measured(host, order)
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    assert measurement.settings["liger"] == value
