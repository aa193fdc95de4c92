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

WAYS, ENDINGS = ("sent", "again"), ("train", "original")


@o.takes(TuneOptions)
def run(
    command: Annotated[list[str], Argument(help="The command, as you start your training.", metavar="COMMAND")],
    then: Annotated[
        str | None,
        Option(
            help="Go on after the search: train with the answer, or with the original settings.",
            metavar="train|original",
            show_default="print the answer, train nothing",
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(
            help="Way of trials: the built Trainer is sent to them, or the command is started again for each.",
            metavar="sent|again",
            show_default="sent, if all of it can be",
        ),
    ] = None,
    call: Annotated[int, Option(min=1, help="Which call of Trainer.train is tuned.")] = 1,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be searched, and end.")] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **options: Any,
) -> None:
    """Find the fastest settings for the training that COMMAND starts, without changing it."""
    kept = resuming("What was measured is kept.", options["fresh"])
    with ErrorReporter(as_json, kept) as reporter:
        for name, word, words in (("--then", then, ENDINGS), ("--by", by, WAYS)):
            if word is not None and word not in words:
                raise InvalidRequest(f"{name} {word} is unknown.", f"Use {' or '.join(words)}.")
        from autotune.commands.run.exchange import Instructions
        from autotune.commands.run.start import run

        stated = {name: value for name, value in options.items() if value is not None}
        wanted = Instructions(call=call, by=by or "", then=then or "", dry_run=dry_run, quiet=quiet, options=stated)
        # With --json standard output has the one JSON object alone.
        ending = run(command, wanted, sys.stderr.fileno() if as_json else None)
        result = ending.result
        if as_json:
            lines = {"exit_code": ending.code, "messages": list(ending.lines)}
            reporter.json(lines if result is None else result.to_dict() | lines)
        else:
            if ending.lines:
                print("\n".join(ending.lines), file=sys.stdout if dry_run else sys.stderr, flush=True)
            if result is not None:
                from autotune.report.summary import answer_lines

                print("\n".join(["", *answer_lines(result), "", *_use_lines(ending, command, then)]))
        if ending.code:
            raise typer.Exit(ending.code)


def _use_lines(ending: Any, command: list[str], then: str | None) -> list[str]:
    """The command with the answer, and where the report is. Writes the changed copy of a config file that it names."""
    from autotune.commands.apply.run import in_command
    from autotune.report.summary import python_lines

    result = ending.result
    report = python_lines(result)[-1]
    if then or not result.changes_settings:
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
        f"     or   autotune run --then train -- {shlex.join(command)}",
        report,
    ]
