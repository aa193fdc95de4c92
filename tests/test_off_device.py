"""A model leaves its device for a while and comes back, however that while ends."""

import pytest
import torch

from autotune import off_device as module
from autotune.off_device import held_note, moved, off_device


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_weights_gradients_buffers_and_states_move_and_stay_the_same_parameters() -> None:
    model, optimizer = trained()
    weight, before = model[0].weight, model[0].weight.detach().clone()
    moved(model, optimizer, torch.device("cpu"))
    assert model[0].weight is weight
    assert torch.equal(weight, before)
    assert optimizer.param_groups[0]["params"][0] is weight
    assert optimizer.state[weight]["exp_avg"].device.type == "cpu"
    assert optimizer.state[weight]["step"].dim() == 0


@pytest.mark.parametrize("ending", [None, ValueError, KeyboardInterrupt])
def test_it_comes_back_however_the_search_ends(
    ending: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = trained()
    asked: list[str] = []
    monkeypatch.setattr(module, "moved", lambda model, optimizer, device: asked.append(str(device)))
    monkeypatch.setattr(module, "is_on_cpu", lambda place: False)

    def search() -> None:
        with off_device(model, optimizer):
            assert asked == ["cpu"]
            if ending:
                raise ending

    if ending:
        with pytest.raises(ending):
            search()
    else:
        search()
    assert asked == ["cpu", "cpu"]  # there, and back to where it was: the CPU again in this test


def test_a_model_on_the_cpu_stays_and_no_device_wakes() -> None:
    model, optimizer = trained()
    with off_device(model, optimizer) as held:
        assert held == ""
    assert not torch.cuda.is_initialized()
    assert held_note() == ""
