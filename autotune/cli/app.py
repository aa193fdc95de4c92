"""The command line: a thin door on `autotune.commands.search`; nothing heavy is loaded before a command runs."""

import json
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from autotune.cli.common import ErrorReporter, json_error, whole
from autotune.cli.compare import compare
from autotune.cli.completion import complete_device, complete_study
from autotune.cli.estimate import estimate
from autotune.cli.explain import explain
from autotune.cli.guide import guide
from autotune.cli.report import report, studies
from autotune.cli.search import search
from autotune.core.errors import AutotuneError
from autotune.study.store import study_folder

USAGE_ERROR: Any = typer.BadParameter.__bases__[0]
"""What typer raises for words it does not know; it has no public name there."""


class Commands(TyperGroup):
    """The commands; what is wrongly typed is one line, with `--json` a JSON object too."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            message, advice = error.format_message(), f"See {(error.ctx or ctx).command_path} --help."
            print(f"Error: {' '.join(message.split()).rstrip('.')}. {advice}", file=sys.stderr)
            if as_json:
                print(json.dumps(json_error("UsageError", message, advice, error.exit_code), indent=1))
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="autotune",
    cls=Commands,
    help="Finds the fastest Hugging Face training configuration that fits your device, by measurement.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Option = typer.Option

app.command()(search)
app.command()(estimate)


@app.command()
def spaces(
    as_json: Annotated[bool, Option("--json", help="Print the spaces as one JSON object on standard output.")] = False,
) -> None:
    """List the search spaces that are shipped."""
    with ErrorReporter(as_json) as answer:
        from autotune.space.file import describe_space, named_spaces, read_space
        from autotune.space.settings import SETTINGS

        if as_json:
            known = {
                name: {"description": describe_space(path), "levers": read_space(name)}
                for name, path in named_spaces().items()
            }
            answer.json({"spaces": known})
            return
        for name, path in named_spaces().items():
            print(f"{name:12} {describe_space(path)}")
            told = (
                f"{setting}*" if "numerics" in SETTINGS[setting].changes else setting for setting in read_space(name)
            )
            print(f"{'':12} {', '.join(told)}")
        print("\n* changes what is learned, not only how fast: --keep-numerics leaves it at your own value")


@app.command()
def verify(
    study: Annotated[str, typer.Argument(help="A study's name, or its folder.", autocompletion=complete_study)],
    steps: Annotated[str, Option(help="Timed steps; up to 10 before them do not count.")] = "500",
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print promised and got as one JSON object.")] = False,
) -> None:
    """Train a study's answer for real, in a plain Trainer, and print what was promised against what it got."""
    with ErrorReporter(
        as_json, "The study is kept as it was; run the same command again to train from the start."
    ) as answer:
        from autotune.commands.verify.result import verification_lines
        from autotune.commands.verify.run import verify

        folder = study_folder(study, output_dir)
        verification = verify(
            folder,
            whole("steps", steps),
            watch=lambda line: print(line, file=sys.stderr if as_json else sys.stdout, flush=True),
        )
        if as_json:
            answer.json(verification.to_dict())
        else:
            print("\n".join(verification_lines(verification)))
        if not verification.completed:
            raise typer.Exit(AutotuneError.exit_code)


@app.command()
def doctor(
    device: Annotated[str, Option(help="Device: auto, cpu, cuda or cuda:1.", autocompletion=complete_device)] = "auto",
    as_json: Annotated[bool, Option("--json", help="Print the facts as one JSON object.")] = False,
) -> None:
    """Say what device, driver, libraries, precisions and optimizers there are, and what does not work and why."""
    with ErrorReporter(as_json) as answer:
        from autotune.commands.doctor import doctor_lines
        from autotune.probe.queries import read_device

        environment = read_device(device, anew=True)
        if as_json:
            answer.json(environment.to_dict())
        else:
            print("\n".join(doctor_lines(environment)))


app.command()(studies)
app.command()(report)
app.command()(compare)
app.command()(guide)
app.command()(explain)
