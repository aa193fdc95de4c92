"""Messages between `autotune run` and the program of its command: files of a folder that a variable names."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

from autotune.core.configuration import RANKS
from autotune.core.io import Serializable, read_json, write_json

VARIABLE = "AUTOTUNE_RUN"
"""Names the folder to the programs."""

STARTUP = Path(__file__).parent / "startup"

BUILT, REACHED, NOT_INSTALLED = "built", "reached", "not_installed"
"""Files besides messages: the class of the last Trainer that was built; a mark of the first process that trains; a Python that
has no autotune."""

FIND, TRIAL, TRAIN = "find", "trial", "train"
"""Purposes of a start: find the Trainer, and tune it if it is sent; measure a trial; train with the answer. TRAIN is also what
follows a search."""

IN_PROCESS, RERUN = "in-process", "rerun"
"""Ways of probing: the built Trainer is sent to processes of autotune; the command is started again for each trial."""

GONE_S = 0.1
"""Seconds between looks of a program that waits for its end."""


class Message(Serializable):
    """Message in the folder, in a file that is named as its class."""

    def write(self, folder: Path) -> None:
        """Whole or not at all; raises OSError."""
        write_json(folder / f"{type(self).__name__}.json", self.to_dict())

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The message; None if it is not there."""
        with contextlib.suppress(OSError):
            return cls.from_dict(read_json(folder / f"{cls.__name__}.json"))
        return None


@dataclass(frozen=True, kw_only=True)
class Instructions(Message):
    """Instructions for the programs of a command.

    parent: process id of autotune. folder: in which it was started. started: time of these instructions, in seconds. call: which
    call of `Trainer.train` of a process is meant, from 1. mode: of trials, empty for the choice. trains: with the answer
    afterwards. options: of the search. fields: training arguments that take the place of the program's own, in the object of this
    number (from 1; 0: in all). order: folder of the trial. study: folder of the result that is trained with.
    """

    purpose: str = FIND
    parent: int = field(default_factory=os.getpid)
    folder: str = field(default_factory=os.getcwd)
    started: float = field(default_factory=time.time)
    call: int = 1
    mode: str = ""
    trains: bool = False
    quiet: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    order: str = ""
    study: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts(Message):
    """Facts about the Trainer whose training was reached.

    why: reason of the way of probing. base: arguments that differ from the defaults; arguments: all that are plain data.
    number: of the arguments' object among those that the program made. side_effects: what each
    start of the command does beside the training, for people. prefix: of the program's Python. seconds: from the command's
    start to the training. resumes: it continues a checkpoint. reads_flags: its arguments are those of flags.
    variables: of the program, with which autotune reads the device.
    """

    mode: str
    why: str
    trainer: str
    call: int
    workload: Mapping[str, Any]
    base: Mapping[str, Any]
    arguments: Mapping[str, Any]
    number: int
    global_batch_size: int
    ranks: int
    device: str
    variables: Mapping[str, str]
    study_name: str | None
    unsent: tuple[str, ...] = ()
    side_effects: tuple[str, ...] = ()
    prefix: str = ""
    seconds: float = 0.0
    resumes: bool = False
    reads_flags: bool = False

    def request_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a search for this program."""
        more = {**options, "args": dict(self.base), "device": self.device, "study_name": self.study_name}
        if self.mode == RERUN:
            more["fix"] = [*(options.get("fix") or ()), f"{RANKS}={self.ranks}"]
        return more


@dataclass(frozen=True, kw_only=True)
class SearchEnd(Message):
    """End of a search within the program.

    stop: the program waits for its end. study: folder of the result. kept: reason why the training keeps its own settings.
    restart_reason: reason why the program is started again with the answer. error, message, advice: of an AutotuneError.
    interrupted: number of a signal.
    """

    stop: bool
    study: str = ""
    kept: str = ""
    restart_reason: str = ""
    error: str = ""
    message: str = ""
    advice: str = ""
    interrupted: int = 0


def mode_line(mode: str, why: str) -> str:
    """The way of probing and its reason, for people."""
    how = "The built Trainer is sent to trials" if mode == IN_PROCESS else "The command is started again for each trial"
    return f"{how} (--mode {mode}): {why}."


def leave_environment() -> None:
    """Take autotune out of what child processes inherit."""
    os.environ.pop(VARIABLE, None)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != str(STARTUP)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if not any(paths):
        del os.environ["PYTHONPATH"]


def end_with(parent: int, is_over: threading.Event) -> None:
    """End this process once the parent, of this process id, is gone, until it is over; returns at once."""

    def watch() -> None:
        while not is_over.wait(GONE_S):
            if not _lives(parent):
                os._exit(1)

    threading.Thread(target=watch, name="autotune", daemon=True).start()


def wait_for_end(parent: int) -> NoReturn:
    """Wait for the parent, of this process id, to end this program and all that started it. No code of the program runs."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    while _lives(parent):
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(GONE_S)
    os._exit(0)


def _lives(process: int) -> bool:
    """True for a process id whose process runs: one that was killed and that nobody waits for has no command line."""
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    return False
