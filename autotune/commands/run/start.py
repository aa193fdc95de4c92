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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.commands.run.again import WITHOUT_TRACKERS, Command, CommandHost
from autotune.commands.run.exchange import (
    AGAIN,
    BUILT,
    ENDING,
    FACTS,
    FIND,
    NOT_HERE,
    SENT,
    TRAIN,
    Facts,
    Instructions,
    read,
    way_line,
)
from autotune.core.errors import AutotuneError, InvalidRequest, SearchFailed
from autotune.core.interrupt import Terminated
from autotune.core.io import read_json
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.probe.process import cleanup
from autotune.probe.process.answers import value_of
from autotune.space.build import parse_overrides
from autotune.space.settings.threads import VARIABLE as THREADS

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

LOOK_S = 0.1
"""Seconds between looks for what the program has left."""

INSTEAD = "Add `autotune.tune(trainer)` in front of trainer.train() instead."


@dataclass(frozen=True)
class Ending:
    """End of `autotune run`.

    code: the program's exit code, 0 if autotune ended it. lines: for people, before the answer.
    """

    code: int = 0
    result: "TuningResult | None" = None
    lines: tuple[str, ...] = ()


def run(
    words: Sequence[str],
    options: Mapping[str, Any],
    *,
    by: str = "",
    then: str = "",
    call: int = 1,
    dry_run: bool = False,
    quiet: bool = False,
    stdout: int | None = None,
) -> Ending:
    """Start the command, tune the Trainer of its training, and end or train on.

    words: of the command. options: of `tune`, as its arguments. by: SENT or AGAIN, empty for the choice. then: TRAIN, ORIGINAL,
    or empty to train nothing. call: the call of `Trainer.train` that is tuned. quiet: without progress.
    stdout: descriptor for the program's standard output; by default its own.

    Raises InvalidRequest for a command that cannot be started or never trains, the search's errors, KeyboardInterrupt.
    """
    parse_overrides(tuning_request("program", 1, **options))
    if shutil.which(words[0]) is None:
        script = words[0].endswith(".py")
        raise InvalidRequest(
            f"{words[0]} is not a command.", f"Write: python {words[0]}" if script else "Check its name and PATH."
        )
    cleanup.become_subreaper()
    command = Command(words, dict(os.environ), stdout)
    with _scratch() as messages:
        instructions = Instructions(
            purpose=FIND,
            parent=os.getpid(),
            call=call,
            by=by,
            then=then,
            dry_run=dry_run,
            quiet=quiet,
            options=options,
            fields={} if then else {"push_to_hub": False},
        )
        environment = command.hooked(messages, instructions) | ({} if then else WITHOUT_TRACKERS)
        begun = time.time()
        code = carry_out(command, environment, lambda: _is_due(messages, dry_run))
        facts: Facts | None = read(Facts, messages / FACTS)
        ending: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            ending = read_json(messages / ENDING)
        if "interrupted" in ending:
            number = signal.Signals(ending["interrupted"])
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)
        if facts is None and not ending:
            return _without_training(words, messages, code, then, call)
        if facts is None:
            return _failed(ending, code, then)
        facts = replace(facts, seconds=max(0.0, (messages / FACTS).stat().st_mtime - begun))
        if dry_run:
            from autotune.commands.run.dry_run import dry_run_lines

            return Ending(0, lines=tuple(dry_run_lines(facts, options)))
        if facts.by == SENT:
            return _sent(command, facts, ending, code, then)
        return _again(command, facts, options, then, quiet, messages)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; what a killed parent leaves, a later search removes."""
    cleanup.remove_left_scratch()
    place = cleanup.scratch_folder(secrets.token_hex(8))
    cleanup.make_scratch(str(place))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def carry_out(command: Command, environment: Mapping[str, str], is_due: Callable[[], bool] = lambda: False) -> int:
    """The exit code of the command, as shells have it; 0 if it was due and ended, with all that it started.

    Signals go to it: it decides what they end.
    """
    process = subprocess.Popen(command.words, env=environment, stdout=command.stdout)
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
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False


def _is_due(messages: Path, dry_run: bool) -> bool:
    """True if the program waits for its end."""
    with contextlib.suppress(OSError, ValueError):
        if read_json(messages / ENDING)["stop"]:
            return True
    facts: Facts | None = read(Facts, messages / FACTS)
    return facts is not None and (dry_run or facts.by == AGAIN)


def _without_training(words: Sequence[str], messages: Path, code: int, then: str, call: int) -> Ending:
    """The command ended, and the training was not reached. Raises InvalidRequest unless it failed by itself."""
    name = shlex.join(words)
    built = (messages / BUILT).read_text(encoding="utf-8") if (messages / BUILT).exists() else ""
    if (messages / NOT_HERE).exists():
        where = (messages / NOT_HERE).read_text(encoding="utf-8")
        message, advice = (
            f"The Python of {name} has no autotune ({where}).",
            "Install it there: pip install hf-autotune.",
        )
    elif code:
        return Ending(code, lines=(f"{name} ended with exit code {code} before it trained: nothing was measured.",))
    elif built:
        times = f"called Trainer.train {call} times" if call > 1 else "called Trainer.train"
        message, advice = f"{name} built a {built} and never {times}.", INSTEAD
    else:
        message = (
            f"{name} trained with no transformers Trainer in a Python that autotune reaches: python -I, -E and -S, sudo, "
            "env -i and containers leave PYTHONPATH out."
        )
        advice = INSTEAD
    if then:
        return Ending(code, lines=(f"{message} {advice}",))
    raise InvalidRequest(message, advice)


def _failed(ending: Mapping[str, Any], code: int, then: str) -> Ending:
    """The program trained with its own settings although there is no answer, or else the error is raised."""
    if not then:
        value_of(ending)
    return Ending(code, lines=(f"Error: {ending['message']} {ending['advice']}".rstrip(),))


def _sent(command: Command, facts: Facts, ending: Mapping[str, Any], code: int, then: str) -> Ending:
    """The end of a search within the program."""
    from autotune.commands.result import TuningResult

    if not ending:
        what = f"was ended by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
        raise SearchFailed(f"The program {what} while it was searched for.", "Run the same command again to resume.")
    if "error" in ending:
        return _failed(ending, code, then)
    result = TuningResult.load(ending["study"])
    if anew := ending.get("anew"):
        return _trained(command, facts, result, anew)
    kept = (f"{ending['kept']} It trained with its own settings.",) if ending.get("kept") else ()
    return Ending(code, result, kept)


def _again(
    command: Command,
    facts: Facts,
    options: Mapping[str, Any],
    then: str,
    quiet: bool,
    scratch: Path,
) -> Ending:
    """Search by starting the command for each trial, then train with it as requested."""
    from autotune.commands.search import search
    from autotune.commands.trainer.switch import why_kept
    from autotune.report.live.views import errors, watcher
    from autotune.workload.model.pickling import Payload

    if facts.prefix != sys.prefix:
        raise InvalidRequest(
            f"The program runs in another Python environment ({facts.prefix}) than autotune.",
            f"Start it there: {facts.prefix}/bin/python -m autotune run ...",
        )
    if str(options.get("devices", 1)) != "1" or options.get("executor", "local") != "local":
        raise InvalidRequest(
            f"Several devices cannot be used: {way_line(AGAIN, facts.why)}", "Leave --devices and --executor out."
        )
    lines = [way_line(AGAIN, facts.why), *(f"In each trial as in your program: {line}." for line in facts.beside)]
    if not quiet:
        print("\n".join(f"autotune: {line}" for line in lines), file=sys.stderr, flush=True)
    notes = (Note(NoteKind.AS_IN_PROGRAM, detail=", ".join(facts.unsent)),) if facts.unsent else ()
    payload = Payload(str(facts.workload["name"]), AGAIN.encode(), notes)
    result, kept = None, ""
    try:
        with _threads_of_the_program(facts), watcher(errors(), quiet, stays=False) as watch:
            result = search(
                payload,
                facts.global_batch_size,
                watch=watch,
                probes=lambda _: CommandHost(command, facts, scratch),
                **facts.request_options(options),
            )
    except AutotuneError as error:
        if not then:
            raise
        kept = f"Error: {error.on_command_line}"
    if then == TRAIN and result is not None and not (kept := why_kept(result)):
        return _trained(command, facts, result, "")
    if not then:
        return Ending(0, result)
    lines = [f"{kept} It trained with its own settings."] if kept else []
    return Ending(carry_out(command, command.environment), result, tuple(lines))


def _trained(command: Command, facts: Facts, result: "TuningResult", why: str) -> Ending:
    """Train by a new start of the command, with the answer's fields, variables and ranks."""
    from autotune.study.result import training_setup_of

    setup, baseline = result.setup, training_setup_of(result, result.baseline)
    words = list(command.words)
    if setup.processes != facts.ranks:
        if not Path(words[0]).name.startswith("python"):
            return Ending(0, result, (f"Nothing was trained: {why}.",))
        words[1:1] = ["-m", "torch.distributed.run", "--nproc-per-node", str(setup.processes)]
    own = baseline.training_arguments
    fields = {name: value for name, value in setup.training_arguments.items() if own.get(name) != value}
    with _scratch() as messages:
        instructions = Instructions(
            purpose=TRAIN,
            parent=os.getpid(),
            call=facts.call,
            fields=fields,
            number=facts.number,
            study=str(result.folder.absolute()) if result.folder else "",
            without_checkpointing=result.best.configuration.values.get("checkpointing") == "none",
            padding=setup.data_arguments.get("pad_to_multiple_of"),
        )
        environment = command.hooked(messages, instructions) | setup.variables
        print(f"autotune: The command is started again with the answer{f': {why}' if why else ''}.", file=sys.stderr)
        return Ending(carry_out(replace(command, words=words), environment), result)


@contextlib.contextmanager
def _threads_of_the_program(facts: Facts) -> Any:
    """Within, a process has as many threads by default as all ranks of the program have together."""
    before = os.environ.get(THREADS)
    if facts.ranks > 1:
        os.environ[THREADS] = str(facts.threads * facts.ranks)
    try:
        yield
    finally:
        if facts.ranks > 1:
            os.environ.pop(THREADS)
            if before is not None:
                os.environ[THREADS] = before
