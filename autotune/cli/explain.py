"""`autotune explain`: a thin door on `autotune.commands.explain.run`."""

import sys
from typing import Annotated

import typer

from autotune.cli.common import ErrorReporter, resuming, whole
from autotune.cli.completion import complete_study
from autotune.study.store import study_folder

Option = typer.Option


def explain(
    study: Annotated[str, typer.Argument(help="A study's name, or its folder.", autocompletion=complete_study)],
    rounds: Annotated[
        str, Option(help="Rounds in which each configuration is measured; up to twice as many while it is uncertain.")
    ] = "3",
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    fresh: Annotated[
        bool, Option("--fresh", help="Begin again: measure anew what an earlier explanation measured.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print the explanation as one JSON object.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print the explanation only.")] = False,
) -> None:
    """Say where a study's speed-up comes from, setting by setting, by measuring the way from your settings to the answer."""
    with ErrorReporter(as_json, resuming("What was measured is kept.", fresh)) as answer:
        from autotune.commands.explain.run import explain
        from autotune.commands.explain.text import explanation_lines

        folder = study_folder(study, output_dir)

        def watch(line: str) -> None:
            if not quiet:
                print(line, file=sys.stderr, flush=True)

        told = explain(folder, whole("rounds", rounds), fresh, watch).to_dict()
        if as_json:
            answer.json(told)
        else:
            print("\n".join(explanation_lines(told)))
