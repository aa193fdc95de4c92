"""`autotune studies` and `autotune report`: what earlier searches left."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli_common import plain_errors, study_folder
from autotune.cli_completion import complete_study
from autotune.errors import AutotuneError

Option = typer.Option


def studies(
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the studies as one JSON object on standard output.")] = False,
) -> None:
    """List the studies in a folder: trials, best, speed-up."""
    with plain_errors(as_json) as answer:
        from autotune.report.summary import headline
        from autotune.result import TuningResult

        folders = sorted(path.parent for path in Path(output_dir).glob("*/request.json"))
        known = []
        if not folders and not as_json:
            print(f"No studies in {output_dir}.")
        for folder in folders:
            try:
                result = TuningResult.load(folder)
                said = f"{len(result.trials)} trial(s). {headline(result.facts())}"
                known.append({"name": folder.name} | result.to_dict())
            except AutotuneError as error:
                said = str(error)
                known.append({"name": folder.name, "error": said})
            if not as_json:
                print(f"{folder.name}: {said}")
        if as_json:
            answer.json({"studies": known})


def report(
    study: Annotated[str, typer.Argument(help="A study's name, or its folder.", autocompletion=complete_study)],
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Write a study's report again and print its summary."""
    with plain_errors(as_json) as answer:
        from autotune.report.summary import summary
        from autotune.result import TuningResult

        folder = study_folder(study, output_dir)
        result = TuningResult.load(folder)
        result.save(folder)
        if as_json:
            answer.json(result.to_dict())
        else:
            print(summary(result.facts()))
