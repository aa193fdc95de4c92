"""`autotune studies` and `autotune report`: what earlier searches left."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli_common import plain_errors, study_folder
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.result import TuningResult

Option = typer.Option


def studies(output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports") -> None:
    """List the studies in a folder: trials, best, speed-up."""
    with plain_errors():
        from autotune.report.summary import headline
        from autotune.result import TuningResult

        folders = sorted(path.parent for path in Path(output_dir).glob("*/request.json"))
        if not folders:
            print(f"No studies in {output_dir}.")
        for folder in folders:
            try:
                result = TuningResult.load(folder)
                print(f"{folder.name}: {len(result.trials)} trial(s). {headline(result.facts())}")
            except AutotuneError as error:
                print(f"{folder.name}: {error}")


def report(
    study: Annotated[str, typer.Argument(help="A study's name, or its folder.")],
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the result as one JSON object.")] = False,
    report_to: Annotated[
        list[str] | None,
        Option(
            help="tensorboard, wandb, mlflow or trackio: tell them the study too, as a search with this option would have. "
            "Repeatable, or with commas.",
            metavar="NAME",
        ),
    ] = None,
) -> None:
    """Write a study's report again and print its summary."""
    with plain_errors():
        from autotune.loggers import check_installed
        from autotune.report.summary import summary
        from autotune.request import loggers_named
        from autotune.result import TuningResult

        folder = study_folder(study, output_dir)
        names = loggers_named(report_to)
        check_installed(names)
        result = TuningResult.load(folder)
        result.save(folder)
        print(json.dumps(result.to_dict(), indent=1) if as_json else summary(result.facts()))
        _tell(result, names, folder)


def _tell(result: "TuningResult", names: Sequence[str], folder: Path) -> None:
    """Tell loggers of a study afterwards; exits with 1 where one of them failed."""
    from autotune.loggers.guarded import Guarded

    facts = result.facts()
    loggers = Guarded(names, result.request, facts, folder)
    loggers.finish(facts, complete=True)
    if loggers.problems:
        raise typer.Exit(AutotuneError.exit_code)
