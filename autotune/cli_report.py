"""`autotune studies` and `autotune report`: what earlier searches left."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli_common import plain_errors, study_folder
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    pass

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
) -> None:
    """Write a study's report again and print its summary."""
    with plain_errors():
        from autotune.report.summary import summary
        from autotune.result import TuningResult

        folder = study_folder(study, output_dir)
        result = TuningResult.load(folder)
        result.save(folder)
        print(json.dumps(result.to_dict(), indent=1) if as_json else summary(result.facts()))
