"""`autotune apply`: the answer of a study in the user's own command or config file."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter


def apply(
    study: o.StudyArgument,
    file: Annotated[
        list[str],
        Argument(
            help="Config file of TRL, axolotl, LLaMA-Factory or HfArgumentParser, a Python file, or -- and a command.",
            metavar="FILE",
        ),
    ],
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
) -> None:
    """Write the answer into your command or config file."""
    with ErrorReporter(as_json) as command:
        from autotune.commands.apply.run import in_command, in_file
        from autotune.commands.result import TuningResult
        from autotune.study.store import study_folder

        result = TuningResult.load(study_folder(study, output_dir))
        is_file = len(file) == 1 and (Path(file[0]).exists() or Path(file[0]).suffix)
        applied = in_file(result, file[0]) if is_file else in_command(result, file)
        applied.write()
        command.show(applied.to_dict(), applied.lines)
