"""`autotune explain`: command of `autotune.explain`."""

from typing import Annotated

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter, resuming
from autotune.study.store import study_folder


def explain(
    study: o.Study,
    rounds: Annotated[
        int,
        typer.Option(help="Rounds of measuring each configuration; up to twice as many while the result is uncertain."),
    ] = 3,
    output_dir: o.OutputDir = "reports",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what an earlier explanation measured and start again.")
    ] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Explain a study's speed-up setting by setting, by measuring the steps from your settings to the result."""
    with ErrorReporter(as_json, resuming("What was measured is kept.", fresh)) as command:
        from autotune.commands.explain.run import explain
        from autotune.commands.explain.text import explanation_lines

        explanation = explain(study_folder(study, output_dir), rounds, fresh, watch=not quiet)
        if as_json:
            command.json(explanation.to_dict())
        else:
            print("\n".join(explanation_lines(explanation)))
