"""The parent's side: starts the command with the hook, searches if it has to be started again, and ends as requested."""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ENOEXEC
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.commands.run.exchange import BUILT, NOT_INSTALLED, RERUN, TRAIN, Facts, Instructions, SearchEnd, mode_line
from autotune.commands.run.rerun import WITHOUT_TRACKERS, Command, CommandHost, changed
from autotune.core.errors import AutotuneError, InvalidRequest, SearchFailed
from autotune.core.interrupt import ENDING, Terminated
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.probe.process import cleanup
from autotune.probe.process.answers import value_of
from autotune.space.build import parse_overrides
from autotune.space.launch import on_ranks

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

LOOK_S = 0.1
"""Seconds between looks for what the program has left."""


@dataclass(frozen=True)
class Ending:
    """End of `autotune run`.

    code: the program's exit code, 0 if autotune ended it. lines: for people, before the answer. reads_flags: see `Facts`.
    """

    code: int = 0
    result: "TuningResult | None" = None
    lines: tuple[str, ...] = ()
    reads_flags: bool = False


def run(words: Sequence[str], wanted: Instructions, stdout: int | None = None) -> Ending:
    """Start the command, tune the Trainer of its training, and end or train on.

    words: of the command. wanted: what users can choose. stdout: descriptor for the program's standard output; by default its
    own.

    Raises InvalidRequest for a command that cannot be started or never trains, the search's errors, KeyboardInterrupt.
    """
    parse_overrides(tuning_request("program", 1, **wanted.options))
    if any(word.startswith("PYTHONPATH=") for word in words):
        raise InvalidRequest(
            "The command sets PYTHONPATH, by which autotune reaches its programs.",
            "Set it in front of autotune: PYTHONPATH=... autotune run -- ...",
        )
    cleanup.become_subreaper()
    command = Command(words, dict(os.environ), stdout)
    with _scratch() as messages:
        environment = command.hooked(
            messages, wanted if wanted.trains else replace(wanted, fields={"push_to_hub": False})
        )
        environment |= {} if wanted.trains else WITHOUT_TRACKERS
        code = carry_out(command, environment, lambda: _is_due(messages))
        facts, end = Facts.read(messages), SearchEnd.read(messages) or SearchEnd(stop=False)
        ended_by = end.interrupted or (0 if end.study or end.error else code - 128)
        if ended_by in (signal.SIGINT, *ENDING):
            raise KeyboardInterrupt if ended_by == signal.SIGINT else Terminated(signal.Signals(ended_by))
        if end.error:
            try:
                value_of(end.to_dict())
            except AutotuneError as error:
                if not wanted.trains:
                    raise
                return Ending(code, lines=(f"Error: {error}",))
        if facts is None:
            return _without_training(words, messages, code, wanted)
        os.environ.update(facts.variables)  # the command has variables of its own
        if facts.mode == RERUN:
            return _rerun(command, facts, wanted, messages)
    if not end.study:
        how = f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        raise SearchFailed(f"The program {how} during the search.", "Run the same command again to resume.")
    from autotune.commands.result import TuningResult

    result = TuningResult.load(end.study)
    if end.restart_reason:
        return _trained(command, facts, result, end.restart_reason)
    return Ending(code, result, _kept_lines(end.kept), facts.reads_flags)


def _kept_lines(reason: str) -> tuple[str, ...]:
    return (f"{reason} It trained with its own settings.",) if reason else ()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; what a killed parent leaves, a later search removes."""
    cleanup.remove_left_scratch()
    folder = cleanup.scratch_folder(secrets.token_hex(8))
    cleanup.make_scratch(str(folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def carry_out(command: Command, environment: Mapping[str, str], is_due: Callable[[], bool] = lambda: False) -> int:
    """The exit code of the command, as shells have it; 0 if it was due and ended, with all that it started.

    Signals go to it: it decides what they end. Raises InvalidRequest if it cannot be started.
    """
    try:
        process = subprocess.Popen(command.words, env=environment, stdout=command.stdout)
    except OSError as error:
        word = command.words[0]
        script = "sh" if error.errno == ENOEXEC else ""  # it names no interpreter
        starter = "python" if word.endswith(".py") else "env" if "=" in word else script
        advice = f"Write: {starter} {word}" if starter else "Check its name and PATH."
        raise InvalidRequest(f"{word} cannot be started: {error.strerror}.", advice) from error
    for of_users in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(of_users, lambda number, _: process.send_signal(number))
    while True:
        try:
            if (code := process.poll()) is not None:
                return code if code >= 0 else 128 - code
            if is_due():
                cleanup.end_descendants()
                process.poll()
                return 0
            time.sleep(LOOK_S)
        except KeyboardInterrupt as error:
            number = error.number if isinstance(error, Terminated) else signal.SIGINT
            if number != signal.SIGINT or not _at_the_terminal():  # a terminal's Ctrl-C reaches the command by itself
                process.send_signal(number)


def _at_the_terminal() -> bool:
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _is_due(messages: Path) -> bool:
    """True if the program waits for its end."""
    facts, end = Facts.read(messages), SearchEnd.read(messages)
    return (end is not None and end.stop) or (facts is not None and facts.mode == RERUN)


def _without_training(words: Sequence[str], messages: Path, code: int, wanted: Instructions) -> Ending:
    """The command ended, and the training was not reached. Raises InvalidRequest unless it failed by itself."""
    name, advice = shlex.join(words), "Add `autotune.tune(trainer)` in front of trainer.train() instead."
    built, where = (
        path.read_text(encoding="utf-8") if (path := messages / mark).exists() else ""
        for mark in (BUILT, NOT_INSTALLED)
    )
    if where:
        message = f"The Python of {name} has no autotune ({where})."
        advice = "Install it there: pip install hf-autotune."
    elif code:
        return Ending(code, lines=(f"{name} ended with exit code {code} before it trained. Make it run alone first.",))
    elif built:
        times = f" {wanted.call} times" if wanted.call > 1 else ""
        message = f"{name} built a {built} and never called Trainer.train{times}."
        advice = "Check that it calls trainer.train(): a training loop of its own cannot be tuned."
    else:
        message = (
            f"{name} trained with no transformers Trainer in a Python that autotune reaches: python -I, -E and -S, sudo, "
            "env -i, containers and scripts that set PYTHONPATH leave autotune's out."
        )
    if wanted.trains:
        return Ending(code, lines=(f"{message} {advice}",))
    raise InvalidRequest(message, advice)


def _rerun(command: Command, facts: Facts, wanted: Instructions, scratch: Path) -> Ending:
    """Search by starting the command for each trial, then train with it as requested."""
    from autotune.commands.search import search
    from autotune.commands.trainer.switch import why_kept
    from autotune.report.live.views import errors, watcher
    from autotune.workload.model.pickling import Payload

    if os.path.realpath(facts.prefix) != os.path.realpath(sys.prefix):
        raise InvalidRequest(
            f"The program runs in another Python environment ({facts.prefix}) than autotune.",
            f"Start it there: {facts.prefix}/bin/python -m autotune run ...",
        )
    options = wanted.options
    if str(options.get("devices", 1)) != "1" or options.get("executor", "local") != "local":
        raise InvalidRequest(
            f"Several devices cannot be used: {mode_line(RERUN, facts.why)}", "Leave --devices and --executor out."
        )
    if not wanted.quiet:
        lines = [
            mode_line(RERUN, facts.why),
            *(f"In each trial, as in your program, {line}." for line in facts.side_effects),
        ]
        print("\n".join(f"autotune: {line}" for line in lines), file=sys.stderr, flush=True)
    notes = (Note(NoteKind.AS_IN_PROGRAM, detail=", ".join(facts.unsent)),) if facts.unsent else ()
    payload = Payload(str(facts.workload["name"]), RERUN.encode(), notes, trains_on=wanted.trains)
    result = None
    try:
        with watcher(errors(), wanted.quiet, stays=False) as watch:
            result = search(
                payload,
                facts.global_batch_size,
                watch=watch,
                probes=lambda _: CommandHost(command, facts, scratch),
                **facts.request_options(options),
            )
    except AutotuneError as error:
        if not wanted.trains:
            raise
        kept = f"Error: {error}"
    else:
        if not wanted.trains:
            return Ending(0, result, reads_flags=facts.reads_flags)
        if not (kept := why_kept(result, facts.resumes)):
            return _trained(command, facts, result, "")
    return Ending(carry_out(command, command.environment), result, _kept_lines(kept))


def _trained(command: Command, facts: Facts, result: "TuningResult", why: str) -> Ending:
    """Train by a new start of the command, with the answer's fields, variables and ranks."""
    setup, words = result.setup, list(command.words)
    if setup.processes != facts.ranks:
        if not Path(words[0]).name.startswith("python"):
            return Ending(1, result, (f"Nothing was trained: {why}.",))
        words = on_ranks(words, setup.processes)
    with _scratch() as messages:
        instructions = Instructions(
            purpose=TRAIN,
            call=facts.call,
            fields=changed(setup.training_arguments, facts, result.environment.training_argument_defaults),
            number=facts.number,
            study=str(Path(result.folder or "").absolute()),
        )
        environment = command.hooked(messages, instructions) | setup.variables
        print(f"autotune: The command is started again with the answer{f': {why}' if why else ''}.", file=sys.stderr)
        return Ending(carry_out(replace(command, words=words), environment), result)
