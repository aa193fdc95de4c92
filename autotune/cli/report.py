"""`autotune studies` and `autotune report`: finished and interrupted searches."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.core.paths import shown

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult


def studies(output_dir: o.OutputDir = "reports", as_json: o.AsJson = False) -> None:
    """List your studies, the latest first."""
    with ErrorReporter(as_json) as command:
        from autotune.commands.studies import studies, studies_lines

        found = studies(Path(output_dir))
        if as_json:
            plain = {
                name: {"error": str(study)} if isinstance(study, AutotuneError) else study.to_dict()
                for name, study in found.items()
            }
            command.json({"studies": [{"name": name} | study for name, study in plain.items()]})
        else:
            print("\n".join(studies_lines(found)) or f"No studies in {output_dir}.")


def report(
    study: o.StudyArgument,
    format: Annotated[
        str | None,
        Option(
            help="Export the table of trials as csv, parquet, jsonl or markdown.",
            metavar="NAME",
            show_default="by --output, else the summary",
        ),
    ] = None,
    output: Annotated[
        str | None, Option(help="Output file of the table.", metavar="FILE", show_default="standard output")
    ] = None,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
    report_to: o.ReportTo = None,
) -> None:
    """Write a study's report again, or export its trials."""
    with ErrorReporter(as_json) as command:
        if as_json and (format is not None or output is not None):
            message = "--json prints the result, --format and --output write the table of trials."
            raise InvalidRequest(message, "Pass only one of them.")
        from autotune.commands.result import TuningResult
        from autotune.core.request import check_installed, loggers_named
        from autotune.study.store import study_folder

        folder = study_folder(study, output_dir)
        loggers = loggers_named(report_to)
        check_installed(loggers)
        result = TuningResult.load(folder)
        if as_json:
            result.save(folder)
            command.json(result.to_dict())
        elif format is not None or output is not None:
            _export(result, format, output)
        else:
            from autotune.report.summary import summary

            result.save(folder)
            print(summary(result))
        _log(result, loggers, folder)


def _export(result: "TuningResult", format: str | None, output: str | None) -> None:
    from autotune.report.formats import formatted

    if output is not None:
        print(f"Written: {shown(result.export(output, format))}")
    elif isinstance(content := formatted(result.to_frame(), str(format)), bytes):
        raise InvalidRequest(f"--format {format} is not text.", "Name a file with --output.")
    else:
        print(content, end="")


def _log(result: "TuningResult", names: Sequence[str], folder: Path) -> None:
    """Record a finished study in trackers; exits with 1 if one of them failed."""
    if not names:
        return
    from autotune.report.trackers import Trackers, answer_of
    from autotune.study.database import database_of

    trackers = Trackers(names, folder)
    trackers.close(database_of(folder, result.trials, result.request.objective).study, answer_of(result))
    if trackers.problems:
        raise typer.Exit(AutotuneError.exit_code)
