"""`tune` on a GPU: the model leaves the card while it searches, and is back afterwards."""

from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

import autotune
from autotune.commands.trainer.offload import held_memory, moved, off_device, states_on
from autotune.core.warning import WarningKind
from tests.trainers import Numbers, bert

pytestmark = pytest.mark.gpu


def test_weights_and_states_leave_the_card_and_come_back() -> None:
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    model.zero_grad()
    before, held_before = model.weight.detach().cpu().clone(), torch.cuda.memory_allocated()
    with off_device(model, optimizer) as held:
        assert model.weight.device.type == "cpu"
        assert optimizer.state[model.weight]["exp_avg"].device.type == "cpu"
        assert torch.cuda.memory_allocated() <= held_before - 3 * 4 * 1024**2  # weights and two states in float32
        assert "counted as not free" in str(held)
    assert model.weight.device.type == "cuda"
    assert optimizer.state[model.weight]["exp_avg"].device.type == "cuda"
    assert torch.equal(model.weight.detach().cpu(), before)
    moved(model, states_on(model.weight.device, optimizer), "cpu")
    assert held_memory()
    with off_device(model, optimizer, "cpu") as held:
        assert held is None, "a search on the CPU needs nothing of the card"


def test_pages_of_an_optimizer_are_the_host_s_before_and_afterwards() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = bitsandbytes.optim.PagedAdamW32bit(model.parameters())
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    paged = optimizer.state[model.weight]["state1"]
    with off_device(model, optimizer):
        assert optimizer.state[model.weight]["state1"] is paged
    assert optimizer.state[model.weight]["state1"] is paged
    optimizer.step()


def test_a_trainer_on_the_card_is_searched_for_and_gets_its_answer(tmp_path: Path) -> None:
    args = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=4, report_to="none", save_strategy="no", max_steps=2
    )
    trainer = Trainer(model=bert(), args=args, train_dataset=Numbers())
    assert trainer.model.device.type == "cuda"
    result = autotune.tune(trainer, n_trials=2, space="quick", output_dir=str(tmp_path / "reports"), no_history=True)
    assert trainer.model.device.type == "cuda"
    assert result.environment.device == "cuda:0"
    assert any(warning.kind is WarningKind.HELD_MEMORY for warning in result.study_warnings)
    assert any("this process still holds" in str(warning) for warning in result.warnings)
    assert result.best.measurement.outcome == "completed"
    assert result.apply(trainer).train().global_step == 2
