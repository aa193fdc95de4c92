"""A model leaves its device for a while and comes back, however that while ends.

The card of these tests is torch's device `meta`, on which tensors have no values: what leaves it gets new ones.
"""

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from autotune.commands.trainer import offload
from autotune.commands.trainer.offload import held_memory, moved, off_device, states_on
from autotune.core.warning import ResultWarning, WarningKind

CPU, CARD = torch.device("cpu"), torch.device("meta")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def places(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, set[str]]:
    """What -> where all of it lies."""
    tensors: dict[str, Iterable[torch.Tensor]] = {
        "parameters": model.parameters(),
        "gradients": [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
        "buffers": model.buffers(),
    }
    tensors |= {name: [item[name] for item in optimizer.state.values()] for name in ("step", "exp_avg", "exp_avg_sq")}
    return {name: {item.device.type for item in every} for name, every in tensors.items()}


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model on the card; of its optimizer `exp_avg` lies there, and `exp_avg_sq` on the CPU as pages do."""
    model, optimizer = trained()
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to(CARD)
    model.to(CARD)

    def moved_without_values(model: torch.nn.Module, states: list[Any], device: Any) -> None:
        if torch.device(device) == CARD:
            moved(model, states, device)
            return
        model.to_empty(device=device)
        for state, name in states:
            state[name] = torch.empty_like(state[name], device=device)

    monkeypatch.setattr(offload, "moved", moved_without_values)
    return model, optimizer


def test_they_stay_the_same_parameters_with_the_same_values() -> None:
    model, optimizer = trained()
    weight, before = model[0].weight, model[0].weight.detach().clone()
    moved(model, states_on(CPU, optimizer), CPU)
    assert model[0].weight is weight
    assert torch.equal(weight, before)
    assert optimizer.param_groups[0]["params"][0] is weight


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_it_comes_back_however_the_search_ends(ending: type[BaseException] | None, on_card: Any) -> None:
    model, optimizer = on_card
    before = places(model, optimizer)
    assert before["parameters"] == before["buffers"] == before["exp_avg"] == {"meta"}
    assert before["exp_avg_sq"] == {"cpu"}

    def search() -> None:
        with off_device(model, optimizer):
            assert {place for every in places(model, optimizer).values() for place in every} == {"cpu"}
            if ending:
                raise ending

    if ending:
        with pytest.raises(ending):
            search()
    else:
        search()
    assert places(model, optimizer) == before, "with the pages where pages were"


HELD = ResultWarning(WarningKind.HELD_MEMORY, {"bytes": 9 * 2**30}, "its CUDA context")


def test_a_model_on_the_cpu_stays_and_no_device_wakes() -> None:
    model, optimizer = trained()
    with off_device(model, optimizer) as held:
        assert held is None
    assert not torch.cuda.is_initialized()
    assert held_memory() is None


def test_what_is_held_on_a_card_is_no_warning_of_a_search_on_the_cpu(
    on_card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "held_memory", lambda: HELD)
    for model, optimizer in (trained(), on_card):
        for device, warning in (("cpu", None), ("cuda:0", HELD)):
            with off_device(model, optimizer, device) as held:
                assert held is warning
