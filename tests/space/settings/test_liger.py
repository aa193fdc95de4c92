"""Liger's kernels."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch

from autotune.space.settings import Context
from autotune.space.settings.liger import LOSS, SETTING
from autotune.space.setup import training_setup
from autotune.workload.model import liger as kernels
from tests.makers import FIELDS, cpu, gpu, workload
from tests.probe.probes import configuration
from tests.space.settings.fakes import observed

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
    assert SETTING.from_user(Context(CARD, KNOWN)) == "none"
    assert SETTING.from_user(Context(CARD, KNOWN, {"use_liger_kernel": True})) == "kernels_and_loss"
    without_loss = {"use_liger_kernel": True, "liger_kernel_config": {LOSS: False}}
    assert SETTING.from_user(Context(CARD, KNOWN, without_loss)) == "kernels"


def test_none_takes_the_user_s_choice_of_kernels_back() -> None:
    base = {"use_liger_kernel": True, "liger_kernel_config": {LOSS: False}}
    made = training_setup(configuration(2, liger="none"), CARD, base).training_arguments
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
    assert SETTING.read_back(observed(model=running)) == value


def test_it_is_read_back_through_mixed_precision_which_wraps_the_model_s_forward() -> None:
    running = model(of_a_layer=True, of_itself=True)
    running._original_forward = running.forward
    running.forward = types.MethodType(lambda self, x: x, running)
    assert SETTING.read_back(observed(model=running)) == "kernels_and_loss"


@pytest.mark.parametrize("choice", [{}, {LOSS: False}])
def test_a_user_s_own_trainer_trains_with_its_own_kernels(choice: dict[str, bool]) -> None:
    """Liger's table is read for models that autotune builds."""
    own = {"use_liger_kernel": True, "liger_kernel_config": choice}
    mine = Context(CARD, workload(user_objects=True, task="custom"), own)
    value = SETTING.from_user(mine)
    assert SETTING.unavailable(value, mine) is None
    (other,) = {"kernels", "kernels_and_loss"} - {value}
    assert "not asked" in str(SETTING.unavailable(other, mine))
    bare = gpu(training_argument_fields=CARD.training_argument_fields, liger="not installed: pip install liger-kernel")
    assert "pip install" in str(SETTING.unavailable(value, Context(bare, mine.workload, own)))


def test_a_model_for_which_liger_has_no_loss_keeps_its_own_whatever_the_arguments_leave_open() -> None:
    without = workload(liger={"kernels": None, "kernels_and_loss": "it has no such loss for models of type vit"})
    mine = Context(CARD, without, {"use_liger_kernel": True})
    assert SETTING.from_user(mine) == "kernels"
    assert SETTING.unavailable("kernels", mine) is None


def test_what_cannot_run_is_unavailable_with_its_reason() -> None:
    assert SETTING.unavailable("kernels_and_loss", Context(CARD, KNOWN)) is None
    assert SETTING.unavailable("none", Context(cpu(), workload())) is None
    assert "next token" in str(SETTING.unavailable("kernels_and_loss", Context(CARD, workload(task="masked-lm"))))
    none = workload(liger={"kernels": "it has no kernels for models of type gpt2"})
    assert str(SETTING.unavailable("kernels", Context(CARD, none))) == "it has no kernels for models of type gpt2"
    bare = gpu(training_argument_fields=CARD.training_argument_fields, liger="not installed: pip install liger-kernel")
    assert "pip install" in str(SETTING.unavailable("kernels", Context(bare, KNOWN)))


class Table(types.ModuleType):
    """Liger's table of one type of model, with its loss, and of another without."""

    def __init__(self) -> None:
        super().__init__("liger_kernel.transformers.monkey_patch")
        self.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": self._llama, "vit": self._vit}

    def _llama(self, rope: bool = True, fused_linear_cross_entropy: bool = True) -> None: ...

    def _vit(self, layer_norm: bool = True) -> None: ...


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger installed, with that table."""
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: name)
    parents = {name: types.ModuleType(name) for name in ("liger_kernel", "liger_kernel.transformers")}
    for name, module in {**parents, "liger_kernel.transformers.monkey_patch": Table()}.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("kind", "of_layers", "loss"),
    [
        ("llama", None, None),
        ("vit", None, "it has no such loss for models of type vit"),
        ("gpt2", *["it has no kernels for models of type gpt2"] * 2),
    ],
)
def test_liger_s_own_table_says_for_which_models_it_has_kernels(
    liger: None, kind: str, of_layers: str | None, loss: str | None
) -> None:
    made = kernels.made_for(SimpleNamespace(model_type=kind))
    assert made == {"kernels": of_layers, "kernels_and_loss": loss}


def test_a_liger_that_cannot_be_imported_says_why(liger: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    made = kernels.made_for(SimpleNamespace(model_type="llama"))
    assert all("cannot be imported" in (why or "") for why in made.values())
