"""The command line: its commands, and usage errors as one line or one JSON object."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from autotune.cli import options as o
from autotune.cli.apply import apply
from autotune.cli.common import WORDS, ErrorReporter, json_error, print_message, resuming
from autotune.cli.compare import compare
from autotune.cli.help import START, examples
from autotune.cli.report import report, studies
from autotune.cli.run import run
from autotune.cli.search import search
from autotune.cli.serve import login, serve, token
from autotune.core.paths import shown
from autotune.core.request import VERIFICATION_SECONDS, EstimateOptions, GuideOptions
from autotune.core.units import broken
from autotune.core.version import __version__

USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""typer's error for unknown words; it has no public name."""

DEFAULT_SPACE, WIDTH = "default", 80
"""Default search space, which is listed first; columns of the list."""


class Commands(TyperGroup):
    """The commands; a usage error is one line, with `--json` a JSON object too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            command = error.ctx or ctx
            message, advice = error.format_message(), f"See {command.command_path} --help."
            if message.startswith("Missing") and (shown := examples(command.info_name or "")):
                advice = f"For example: {shown[0]}"
            text = " ".join(message.split()).replace("'?.", "'?").rstrip(".")
            print_message(f"Error: {text}{'' if text.endswith('?') else '.'} {advice}")
            if as_json:
                print(json.dumps(json_error("UsageError", message, advice, error.exit_code), indent=1))
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="autotune",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Find the fastest Hugging Face training configuration that fits your device, by measurement."""
    if version:
        print(f"autotune {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(START)


@o.takes(EstimateOptions)
def estimate(model: o.Model, global_batch_size: o.GlobalBatchSize, as_json: o.AsJson = False, **options: Any) -> None:
    """Estimate what fits a GPU, from the config of MODEL alone."""
    with ErrorReporter(as_json) as command:
        from autotune.commands.estimate.run import estimate
        from autotune.commands.estimate.text import forecast_lines

        forecast = estimate(model, global_batch_size, **options)
        plain = forecast.to_dict()
        command.show(plain, forecast_lines(plain))
        forecast.check()


def search_spaces(as_json: o.AsJson = False) -> None:
    """List the search spaces and their settings."""
    with ErrorReporter(as_json) as command:
        from autotune.space.file import named_spaces, open_space
        from autotune.space.settings import SETTINGS

        spaces = {name: open_space(name) for name in named_spaces()}
        if as_json:
            shown = {name: {"description": file.description, "settings": file.values} for name, file in spaces.items()}
            command.json({"spaces": shown})
            return
        for name, file in sorted(spaces.items(), key=lambda space: (space[0] != DEFAULT_SPACE, space[0])):
            settings = ", ".join(f"{setting}*" if SETTINGS[setting].learning else setting for setting in file.values)
            indent = " " * 13
            print("\n".join(broken(file.description, WIDTH, f"{name:12} ", indent)))
            print("\n".join(broken(settings, WIDTH, indent, indent)))
        print("\n* changes what is learned, not only the speed: --keep-numerics keeps your value")


def verify(
    study: o.StudyArgument,
    seconds: Annotated[float, Option(help="Seconds of timed steps of each side in all.")] = VERIFICATION_SECONDS,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Check the speed-up: train with your settings and the answer in turns."""
    when_interrupted = "The study keeps the complete rounds; run the same command again to train from the start."
    with ErrorReporter(as_json, when_interrupted) as command:
        from autotune.commands.verify.result import verification_lines
        from autotune.commands.verify.run import verify
        from autotune.study.store import study_folder

        watch = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
        verification = verify(study_folder(study, output_dir), seconds, watch=False if quiet else watch)
        command.show(verification.to_dict(), [*([] if quiet else [""]), *verification_lines(verification)])
        if verification.exit_code:
            raise typer.Exit(verification.exit_code)


def doctor(
    device: o.DeviceOption = "auto",
    all: Annotated[bool, Option("--all", help="List what does not work too, with the reason.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Discard what an earlier check found and check again.")] = False,
    server: o.Server = None,
    as_json: o.AsJson = False,
) -> None:
    """Check this machine: device, precisions, optimizers; or a server."""
    with ErrorReporter(as_json) as command:
        if server is not None:
            from autotune.cli.remote import check_server

            check_server(server, command, as_json)
            return
        from autotune.commands.doctor import doctor_lines
        from autotune.probe.queries import read_device

        if sys.stderr.isatty():
            print("Checking this machine: the first time takes up to a minute ...", file=sys.stderr)
        environment = read_device(device, fresh)
        command.show(environment.to_dict(), doctor_lines(environment, all))


def explain(
    study: o.StudyArgument,
    rounds: Annotated[
        int,
        Option(help="Rounds of measuring each configuration; up to twice as many while the result is uncertain."),
    ] = 3,
    output_dir: o.OutputDir = "reports",
    fresh: Annotated[
        bool, Option("--fresh", help="Discard what an earlier explanation measured and start again.")
    ] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure how much each setting adds to the speed-up."""
    with ErrorReporter(as_json, resuming("What was measured is kept.", fresh)) as command:
        from autotune.commands.explain.run import explain
        from autotune.commands.explain.text import explanation_lines
        from autotune.study.store import study_folder

        explanation = explain(study_folder(study, output_dir), rounds, fresh, watch=not quiet)
        command.show(explanation.to_dict(), explanation_lines(explanation))


@o.takes(GuideOptions)
def guide(
    model: o.Model,
    global_batch_size: Annotated[int, Option("--global-batch-size", "-b", help="Samples in one optimizer step.")] = 4,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Measure the methods of the Hugging Face guides, or of today's ladder, one by one."""
    when_interrupted = "guide.md has what was measured; run the same command again to measure all from the start."
    with ErrorReporter(as_json, when_interrupted) as command:
        from autotune.commands.guide.run import check_any_fits, guide
        from autotune.commands.guide.table import ladder_lines

        watch = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
        ladder = guide(model, global_batch_size, watch=watch, **options)
        folder = shown(Path(ladder.folder))
        tables = f"Table: {folder}/guide.md and guide.json"
        command.show(ladder.to_dict() | {"folder": folder}, ["", *ladder_lines(ladder), "", tables])
        check_any_fits(ladder)


COMMANDS = {
    "Tune": (search, run, estimate, doctor),
    "Results": (report, apply, explain, verify, compare, studies),
    "Service": (serve, token, login),
    "Reference": (search_spaces, guide),
}
"""Panel of the help -> commands, in the order shown."""

for panel, commands in COMMANDS.items():
    for command in commands:
        name = command.__name__.replace("_", "-")
        # The options behind the first word of `run` are its command's own.
        settings = {"allow_interspersed_args": False} if name == "run" else {}
        end = "\n  ".join(["Examples:", *examples(name)])
        declared = app.command(name, rich_help_panel=panel, epilog=end, context_settings=settings)
        declared(command)
