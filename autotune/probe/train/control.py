"""Control of a trial's training: to the user's code it is the user's training, and it ends when the trial does.

                     user's callbacks            autotune's callback
Trainer --event--> what they set on the  --> decides on stopping, evaluating, saving --> Trainer
                   control does not count
"""

import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import Trainer, get_constant_schedule_with_warmup
from transformers.trainer_callback import CallbackHandler

from autotune.core import Outcome, failures
from autotune.core.proxy import Proxy

FLAGS = ("should_training_stop", "should_epoch_stop", "should_evaluate", "should_save")
"""Fields of a TrainerControl that a trial's own callback decides on."""


WARMUP_STEPS = 3
"""Steps of a confirmation round in which the learning rate rises, where the user's training has a warmup."""


class CallbackFailed(Exception):
    """A callback of the user's failed. left_out: its class's name -> its error."""

    def __init__(self, name: str, event: str, reason: str) -> None:
        super().__init__(f"your callback {name} failed in {event}: {reason}")
        self.left_out = {name: reason}


class TrialControl:
    """Control of a Trainer's training by a callback of autotune; made before `train()`.

    The callback is called last at each event, and it alone decides when the training ends, evaluates and saves; it ends after
    `steps` optimizer steps at the latest. Steps, epochs and schedule are those of the user's training, whose steps have
    `accumulation` micro-steps.

    A callback of the user's that fails raises CallbackFailed. If nothing is measured any more, or `goes_on`, the event is left
    out instead, and so is a schedule from the step on at which it fails. left_out: their names -> errors.
    """

    def __init__(self, trainer: Any, callback: Any, steps: int, accumulation: int, goes_on: bool = False) -> None:
        self.left_out: dict[str, str] = {}
        self._trainer, self._callback, self._steps, self._goes_on = trainer, callback, steps, goes_on
        self._accumulation = accumulation
        self._flags = dict.fromkeys(FLAGS, False)
        self._progress: tuple[int, float] = (0, 0.0)
        self._taken = self._taken_before = 0
        self._seconds = 0.0
        self._call = trainer.callback_handler.call_event
        trainer.callback_handler.call_event = self._event
        trainer.set_initial_training_values = partial(self._values, trainer.set_initial_training_values)

    @property
    def callbacks_s(self) -> float:
        """Seconds that the Trainer's other callbacks took in a step on average; on a GPU they may wait for the step itself."""
        return self._seconds / max(1, self._taken)

    def _values(self, compute: Callable[..., tuple[Any, ...]], args: Any, *more: Any, **named: Any) -> tuple[Any, ...]:
        """The user's number of steps, and epochs that do not end before the trial does."""
        run, args.gradient_accumulation_steps = args.gradient_accumulation_steps, self._accumulation
        try:
            epochs, updates, *others, in_epoch, steps = compute(args, *more, **named)
        finally:
            args.gradient_accumulation_steps = run
        if updates <= self._steps:
            in_epoch = updates * run
        elif in_epoch and run != self._accumulation:
            in_epoch *= run / self._accumulation
        self._epochs = epochs
        return self._steps + 1, self._steps + 1, *others, in_epoch, steps

    def _event(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        flags = {flag: self._flags[flag] and getattr(control, flag) for flag in FLAGS}
        if event == "on_train_begin":
            state.num_train_epochs = self._epochs
            self._trainer.lr_scheduler = _Schedule(self._trainer.lr_scheduler, self.left_out)
        elif event == "on_step_end":
            self._taken += 1
            if state.global_step >= state.max_steps > 1:  # the user's training would be over: it stays before its end
                state.global_step, state.epoch = self._progress
            self._progress = state.global_step, state.epoch
        begun = time.perf_counter()
        try:
            control = self._call(event, args, state, control, **kwargs)
        except (Exception, SystemExit) as error:
            self._leave_out(event, error)
        self._seconds += (time.perf_counter() - begun) * (event == "on_log" or "step" in event)
        vars(control).update(flags)
        getattr(self._callback, event)(args, state, control)
        if event == "on_epoch_end":  # without a step: there are no batches
            control.should_training_stop |= self._taken == self._taken_before
            self._taken_before = self._taken
        control.should_training_stop |= self._taken >= self._steps
        self._flags = {flag: getattr(control, flag) for flag in FLAGS}
        return control

    def _leave_out(self, event: str, error: BaseException) -> None:
        """Go on without this event of the callback that raised this, if that is allowed."""
        frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        handling = next((frame for frame in frames if frame.f_code is CallbackHandler.call_event.__code__), None)
        failure = failures.from_exception(error, "")
        if handling is None or failure.outcome is Outcome.OUT_OF_MEMORY:
            raise error
        name = type(handling.f_locals["callback"]).__name__
        if not (self._goes_on or self._flags["should_training_stop"]):
            raise CallbackFailed(name, event, failure.reason) from error
        traceback.print_exception(error)
        self.left_out[f"{name}.{event}"] = failure.reason


def keep_rate(trainer: Any) -> None:
    """Give a training of a confirmation round a rate that does not decay, unless the schedule is the user's own.

    Trials that take another number of steps can then be compared by their losses. A long warmup becomes a short one, or nothing
    would be learned in these steps.
    """
    if getattr(trainer.create_scheduler, "__func__", None) is not Trainer.create_scheduler:
        return
    args = trainer.args
    warmup = WARMUP_STEPS * bool(args.warmup_steps or getattr(args, "warmup_ratio", None))

    def create_scheduler(num_training_steps: int, optimizer: Any = None) -> Any:  # noqa: ARG001  (passed by name)
        if optimizer is not None or trainer.lr_scheduler is None:  # DeepSpeed's is made for an optimizer of its own
            trainer.lr_scheduler = get_constant_schedule_with_warmup(optimizer or trainer.optimizer, warmup)
        return trainer.lr_scheduler

    trainer.create_scheduler = create_scheduler


class _Schedule(Proxy):
    """A learning-rate schedule whose rate stays as it is once it fails to step, as after the end of the user's training."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        schedule, left_out = self._proxied
        name = f"{type(schedule).__name__}.step"
        if name not in left_out:
            try:
                schedule.step(*args, **kwargs)
            except Exception as error:
                traceback.print_exc()
                left_out[name] = f"{failures.from_exception(error, '').reason}; the learning rate stays as it is"
