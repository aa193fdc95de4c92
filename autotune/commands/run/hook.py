"""Hook in each program with a Trainer: counts its training arguments, and hands the training that is meant to autotune."""

import contextlib
import functools
import os
import time
from typing import Any

from autotune.commands.run.exchange import BUILT, FIND, REACHED, TRIAL, Instructions, folder, leave_environment

STARTED = time.monotonic()

made: list[Any] = []
"""The program's training arguments, in the order in which they were made."""


@functools.cache
def _instructions() -> Instructions:
    instructions = Instructions.read(folder())
    assert instructions is not None
    return instructions


def watch_arguments(module: Any) -> None:
    """Note each `TrainingArguments` that is made, and give it the instructed fields as if they had been passed."""
    kind, instructions = module.TrainingArguments, _instructions()
    initialise = kind.__post_init__
    unfinished: dict[int, Any] = {}

    def set_field(self: Any, name: str, value: Any) -> None:
        if not vars(self):  # the first field in its __init__; copies come with all of them
            made.append(self)
            if instructions.number in (0, len(made)):
                unfinished[id(self)] = self
        if id(self) in unfinished:
            value = instructions.fields.get(name, value)
        object.__setattr__(self, name, value)

    @functools.wraps(initialise)
    def initialised(self: Any) -> None:
        unfinished.pop(id(self), None)
        initialise(self)

    kind.__setattr__, kind.__post_init__ = set_field, initialised


def _is_first() -> bool:
    """True in the first process of the command that reaches its training, and in all ranks of it."""
    if os.environ.get("RANK", "0") != "0":
        return True
    try:
        (folder() / REACHED).touch(exist_ok=False)
    except OSError:  # it is there, or autotune has ended
        return False
    return True


def watch_trainer(module: Any) -> None:
    """Hand the call of `Trainer.train` that is meant to autotune; all others, and later ones, are the program's."""
    trainer, instructions = module.Trainer, _instructions()
    train, build = trainer.train, trainer.__init__
    calls = 0
    if instructions.purpose == TRIAL:
        from autotune.commands.run import trial

        trial.begin(instructions, STARTED)

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(OSError):  # autotune has ended
            (folder() / BUILT).write_text(type(self).__name__, encoding="utf-8")
        build(self, *args, **kwargs)

    @functools.wraps(train)
    def reached(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < instructions.call or not _is_first():
            return train(self, *args, **kwargs)
        trainer.train, trainer.__init__ = train, build
        messages = folder()
        leave_environment()
        if instructions.purpose == TRIAL:
            from autotune.commands.run import trial

            trial.carry_out(self, train, instructions)
        from autotune.commands.run import program

        if instructions.purpose == FIND:
            resumes = bool(kwargs.get("resume_from_checkpoint", args[0] if args else None))
            program.tune_here(self, instructions, messages, made, resumes)
        else:
            program.prepare(self, instructions)
        return train(self, *args, **kwargs)

    trainer.train, trainer.__init__ = reached, built
