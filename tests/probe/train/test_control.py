"""A trial's training as the user's code sees it, and who ends it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from autotune.core.failures import from_exception
from autotune.probe.train.control import CallbackFailed, TrialControl, keep_rate
from autotune.workload.data.sampling import repeat_batches
from tests.trainers import Numbers, bert, built

STEPS = 6


class Steps(TrainerCallback):
    """Counts a training's steps and how it ended."""

    steps = ended = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.ended += 1


class Seen(Trainer):
    """Notes what a loss can depend on."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loader = self.callback_handler.train_dataloader
        state = self.state
        vars(self).setdefault("seen", []).append(
            (state.global_step, state.max_steps, state.num_train_epochs, state.epoch, len(loader))
        )
        return super().compute_loss(*args, **kwargs)


class OneCycle(Seen):
    """A schedule of its own, which depends on the number of steps."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        share = self.args.warmup_steps / num_training_steps
        of = optimizer or self.optimizer
        self.lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(of, 1.0, num_training_steps, pct_start=share)
        return self.lr_scheduler


def controlled(trainer: Any, accumulation: int | None = None, **more: Any) -> tuple[TrialControl, Steps]:
    """The control and steps of a trial of this Trainer, which asked for this accumulation."""
    asked, steps = accumulation or trainer.args.gradient_accumulation_steps, Steps()
    repeat_batches(trainer, (STEPS + 1) * trainer.args.gradient_accumulation_steps + asked)
    return TrialControl(trainer, steps, STEPS, asked, **more), steps


@pytest.mark.parametrize("samples", [64, 4000])
@pytest.mark.parametrize("steps", [2000, -1])
def test_the_user_s_code_sees_the_steps_and_epochs_of_its_own_training(
    samples: int, steps: int, tmp_path: Path
) -> None:
    fields = {"max_steps": steps, "num_train_epochs": 30, "warmup_steps": 100}
    whole = built(tmp_path, OneCycle, fields=fields, train_dataset=Numbers(samples))
    _, taken = controlled(whole)
    whole.train()
    epoch_steps = samples // 8
    most = steps if steps > 0 else 30 * epoch_steps
    epochs = -(-most // epoch_steps)
    expected = [(step, most, epochs, step / epoch_steps, samples // 4) for step in range(STEPS) for _ in range(2)]
    assert whole.seen == [pytest.approx(each) for each in expected]
    assert (taken.steps, taken.ended) == (STEPS, 1)
    few = built(tmp_path, OneCycle, fields={**fields, "gradient_accumulation_steps": 1}, train_dataset=Numbers(samples))
    controlled(few, accumulation=2)
    few.train()
    assert few.seen == [pytest.approx(each) for each in expected[::2]], "of a step of which only a part is run"


def test_a_training_that_is_shorter_than_the_trial_stays_before_its_end(tmp_path: Path) -> None:
    trainer = built(tmp_path, OneCycle, fields={"max_steps": 4, "warmup_steps": 2})
    control, taken = controlled(trainer)
    trainer.train()
    assert [seen[0] for seen in trainer.seen[::2]] == [0, 1, 2, 3, 3, 3]
    assert taken.steps == STEPS
    (name, reason), *others = control.left_out.items()
    assert (name, others) == ("OneCycleLR.step", [])
    assert "Tried to step 5 times" in reason


def _stop(control: Any, _: Any) -> None:
    control.should_training_stop = True


def _stop_epoch(control: Any, _: Any) -> None:
    control.should_epoch_stop = True


def _evaluate(control: Any, _: Any) -> None:
    control.should_evaluate = control.should_save = True


class Does(TrainerCallback):
    """Does this at each of these events."""

    def __init__(self, action: Callable[[Any, Any], None], *events: str) -> None:
        for event in events:
            setattr(self, event, lambda _, state, control, **__: action(control, state))


class Steers(Trainer):
    """Stops from within a step."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.control.should_training_stop = self.control.should_epoch_stop = True
        return super().training_step(*args, **kwargs)


@pytest.mark.parametrize("action", [_stop, _stop_epoch, _evaluate])
def test_what_the_user_s_code_sets_on_the_control_does_not_count(action: Any, tmp_path: Path) -> None:
    events = ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_log")
    trainer = built(tmp_path, Steers, fields={"logging_steps": 1}, callbacks=[Does(action, *events)])
    _, taken = controlled(trainer)
    trainer.train()
    assert taken.steps == STEPS
    assert len(trainer.state.log_history) == STEPS + 1, "logging is the user's"
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_loader_without_batches_ends_the_training(tmp_path: Path) -> None:
    trainer = built(tmp_path, fields={"max_steps": 2000})
    loader = torch.utils.data.DataLoader([])
    trainer.get_train_dataloader = lambda: loader
    _, taken = controlled(trainer)
    trainer.train()
    assert (taken.steps, taken.ended) == (0, 1)


def _fails(_: Any, state: Any) -> None:
    if state.global_step == 2:
        raise KeyError("loss")


def _ends_the_process(_: Any, state: Any) -> None:
    if state.global_step == 2:
        sys.exit(0)


@pytest.mark.parametrize("action", [_fails, _ends_the_process])
def test_a_callback_that_fails_is_named(action: Any, tmp_path: Path) -> None:
    trainer = built(tmp_path, callbacks=[Does(action, "on_step_end")])
    _, taken = controlled(trainer)
    with pytest.raises(CallbackFailed, match="your callback Does failed in on_step_end") as caught:
        trainer.train()
    assert list(caught.value.left_out) == ["Does"]
    assert taken.steps == 1


def test_once_the_steps_are_taken_only_the_event_that_failed_is_left_out(tmp_path: Path) -> None:
    def refused(*_: Any) -> None:
        raise PermissionError("no such folder")

    trainer = built(tmp_path, callbacks=[Does(refused, "on_train_end")])
    control, taken = controlled(trainer)
    trainer.train()
    assert control.left_out == {"Does.on_train_end": "PermissionError: no such folder"}
    assert (taken.steps, taken.ended) == (STEPS, 1)
    goes_on = built(tmp_path, callbacks=[Does(_fails, "on_step_end")])
    control, taken = controlled(goes_on, goes_on=True)
    goes_on.train()
    assert control.left_out == {"Does.on_step_end": "KeyError: 'loss'"}
    assert taken.steps == STEPS


def test_memory_that_runs_out_in_a_callback_is_no_fault_of_it(tmp_path: Path) -> None:
    def runs_out(*_: Any) -> None:
        raise MemoryError

    trainer = built(tmp_path, callbacks=[Does(runs_out, "on_train_end")])
    controlled(trainer)
    with pytest.raises(MemoryError) as caught:
        trainer.train()
    assert from_exception(caught.value, "").outcome == "out_of_memory"


def test_a_round_keeps_the_rate_of_a_schedule_of_the_trainer_s_own_making(tmp_path: Path) -> None:
    def rates(trainer: Any) -> list[float]:
        found: list[float] = []

        def note(*_: Any) -> None:
            found.append(trainer.optimizer.param_groups[0]["lr"])

        trainer.add_callback(Does(note, "on_step_begin"))
        keep_rate(trainer)
        controlled(trainer)
        trainer.train()
        return found

    fields = {"lr_scheduler_type": "cosine", "learning_rate": 0.3, "max_steps": 10}
    assert rates(built(tmp_path, fields=fields)) == [0.3] * STEPS
    warm = built(tmp_path, fields={**fields, "warmup_steps": 500})
    assert rates(warm) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.3, 0.3])
    assert (warm.args.lr_scheduler_type, warm.args.warmup_steps) == ("cosine", 500), "as the user has them"
    own = rates(built(tmp_path, OneCycle, fields={"max_steps": 10, "warmup_steps": 5}))
    assert len({*own}) == STEPS, "a schedule of the user's stays"
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    given = (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    assert rates(built(tmp_path, model=model, optimizers=given)) == [0.5**step for step in range(STEPS)]
