"""`autotune run`: search for the program of a command."""

import shlex
import sys
from typing import Annotated, Any

import typer
from typer import Argument, Option

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter, resuming
from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.core.request import TuneOptions

MODES = ("in-process", "rerun")


@o.takes(TuneOptions)
def run(
    command: Annotated[list[str], Argument(help="The command, as you start your training.", metavar="COMMAND")],
    train: Annotated[bool, Option("--train", help="Then train with the answer.")] = False,
    mode: Annotated[
        str | None,
        Option(
            help="How trials run: a copy of the built Trainer, or the command, started again for each.",
            metavar="in-process|rerun",
            show_default="in-process, if all of the Trainer can be copied",
        ),
    ] = None,
    call: Annotated[int, Option(min=1, help="Which call of Trainer.train is tuned.")] = 1,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **options: Any,
) -> None:
    """Find the fastest settings for the training that COMMAND starts, without changing it."""
    kept = resuming("What was measured is kept.", options["fresh"])
    with ErrorReporter(as_json, kept) as reporter:
        if mode not in (None, *MODES):
            raise InvalidRequest(f"--mode {mode} is unknown.", f"Use {' or '.join(MODES)}.")
        from autotune.commands.run.exchange import Instructions
        from autotune.commands.run.start import run

        stated = {name: value for name, value in options.items() if value is not None}
        wanted = Instructions(call=call, mode=mode or "", trains=train, quiet=quiet, options=stated)
        # With --json standard output has the one JSON object alone.
        ending = run(command, wanted, sys.stderr.fileno() if as_json else None)
        result = ending.result
        if as_json:
            lines = {"exit_code": ending.code, "messages": list(ending.lines)}
            reporter.json(lines if result is None else result.to_dict() | lines)
        else:
            if ending.lines:
                print("\n".join(ending.lines), file=sys.stderr, flush=True)
            if result is not None:
                from autotune.report.summary import answer_lines

                print("\n".join(["", *answer_lines(result), "", *_use_lines(ending, command, train)]))
        if ending.code:
            raise typer.Exit(ending.code)


def _use_lines(ending: Any, command: list[str], trained: bool) -> list[str]:
    """The command with the answer, and where the report is. Writes the changed copy of a config file that it names."""
    from autotune.commands.apply.run import in_command
    from autotune.report.summary import python_lines

    result = ending.result
    report = python_lines(result)[-1]
    if trained or not result.changes_settings:
        return [report]
    try:
        applied = in_command(result, command, reads_flags=ending.reads_flags)
        applied.write()
        lines = applied.lines
    except AutotuneError as error:
        lines = [f"Warning: {error}"]
    return [
        "Use it    the command with the answer:",
        *lines,
        "",
        f"     or   autotune run --train -- {shlex.join(command)}",
        report,
    ]
