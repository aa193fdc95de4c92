"""Hook in each program with a Trainer: counts its training arguments, and hands the training that is meant to autotune."""

import contextlib
import functools
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from autotune.commands.run.exchange import BUILT, FIND, REACHED, TRIAL, VARIABLE, Instructions, leave_environment

STARTED = time.monotonic()

MESSAGES = Path(os.environ.get(VARIABLE, ""))
"""The folder of this process's instructions. It is gone if autotune has ended."""

made: list[Any] = []
"""The program's training arguments, in the order in which they were made."""

parsed: list[Any] = []
"""Training arguments that were made of the program's flags."""

PARSES = "parse_args_into_dataclasses"
"""Method of `HfArgumentParser`, and so of TRL's parser, that makes them of flags."""


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


def watch_arguments(module: Any) -> None:
    """Note each `TrainingArguments` that is made before the training that is meant is reached.

    They get the instructed fields as if these had been passed.
    """
    kind, instructions = module.TrainingArguments, Instructions.read(MESSAGES)
    if instructions is None:
        return
    if instructions.purpose != FIND:
        from autotune.space.settings.precision import leave_launcher

        leave_launcher()
    initialise = kind.__post_init__
    unfinished: dict[int, Any] = {}

    def set_field(self: Any, name: str, value: Any) -> None:
        if not vars(self):  # the first field in its __init__; copies come with all of them
            made.append(self)
            if any(frame.f_code.co_name == PARSES for frame, _ in traceback.walk_stack(sys._getframe())):
                parsed.append(self)
            is_over = _is_first_rank() and (MESSAGES / REACHED).exists()
            if instructions.number in (0, len(made)) and not is_over:
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
    if not _is_first_rank():
        return True
    try:
        (MESSAGES / REACHED).touch(exist_ok=False)
    except OSError:  # it is there, or autotune has ended
        return False
    return True


def watch_trainer(module: Any) -> None:
    """Hand the call of `Trainer.train` that is meant to autotune; all others, and later ones, are the program's."""
    trainer, instructions = module.Trainer, Instructions.read(MESSAGES)
    if instructions is None:
        return
    train, build = trainer.train, trainer.__init__
    calls = 0
    if instructions.purpose == TRIAL:
        from autotune.commands.run import trial

        trial.begin(instructions, STARTED)

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(OSError):  # autotune has ended
            (MESSAGES / BUILT).write_text(type(self).__name__, encoding="utf-8")
        build(self, *args, **kwargs)

    @functools.wraps(train)
    def reached(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < instructions.call or not _is_first():
            return train(self, *args, **kwargs)
        trainer.train, trainer.__init__ = train, build
        leave_environment()
        if instructions.purpose == TRIAL:
            from autotune.commands.run import trial

            trial.carry_out(self, train, instructions)
        from autotune.commands.run import program

        if instructions.purpose == FIND:
            resumes = bool(kwargs.get("resume_from_checkpoint", args[0] if args else None))
            is_trial = kwargs.get("trial", args[1] if len(args) > 1 else None) is not None
            seen = {"resumes": resumes, "reads_flags": bool(parsed)}
            program.tune_here(self, instructions, MESSAGES, made, seen, is_trial)
        else:
            program.train_with_answer(self, instructions)
        return train(self, *args, **kwargs)

    trainer.train, trainer.__init__ = reached, built
