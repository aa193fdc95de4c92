"""`autotune studies` and `autotune report`: finished and interrupted searches."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from autotune.cli import options as o
from autotune.cli.common import PAGE, ErrorReporter
from autotune.core.errors import AutotuneError, InvalidRequest, did_you_mean
from autotune.core.paths import shown

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

TABLES = ("csv", "parquet", "jsonl", "markdown")
"""Formats of the table of trials, as `autotune.report.formats` has them: naming them here loads no pandas."""


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
            help="Format: csv, parquet, jsonl or markdown for the table of trials, html for the page, json for the result.",
            metavar="NAME",
            show_default="by --output, else the summary",
        ),
    ] = None,
    output: Annotated[
        str | None, Option(help="Output file.", metavar="FILE", show_default="standard output, or STUDY.parquet")
    ] = None,
    columns: Annotated[str | None, Option(help="A,B: write only these columns, in this order.", metavar="A,B")] = None,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
    report_to: o.ReportTo = None,
) -> None:
    """Write a study's report again, or export its trials."""
    with ErrorReporter(as_json) as command:
        kind = _kind(format, output, as_json)
        if columns is not None and kind not in TABLES:
            raise InvalidRequest("--columns chooses from the table of trials.", f"Add --format {', '.join(TABLES)}.")
        from autotune.commands.result import TuningResult
        from autotune.core.request import check_installed, loggers_named
        from autotune.report.summary import summary
        from autotune.study.store import study_folder

        folder = study_folder(study, output_dir)
        loggers = loggers_named(report_to)
        check_installed(loggers)
        result = TuningResult.load(folder)
        if kind not in TABLES:
            result.save(folder)
        if kind in TABLES:
            _export(result, kind, output, columns, folder)
        elif kind == "html" and output is None:
            print(f"Written: {shown(folder / PAGE)}")
        elif kind == "html":
            _write((folder / PAGE).read_bytes(), output)
        elif as_json:
            command.json(result.to_dict())
        elif kind == "json":
            _write(json.dumps(result.to_dict(), indent=1) + "\n", output)
        else:
            _write(summary(result) + "\n", output)
        _log(result, loggers, folder)


def _kind(format: str | None, output: str | None, as_json: bool) -> str:
    """One of TABLES, html, json, or empty for the summary. Raises InvalidRequest."""
    if as_json and format not in (None, "json"):
        raise InvalidRequest(f"--json and --format {format} ask for two things.", "Pass only one of them.")
    if as_json and output is not None:
        raise InvalidRequest("--json prints on standard output.", "Write a file with --format json --output FILE.")
    if as_json:
        return "json"
    if format is not None:
        if format not in (formats := (*TABLES, "html", "json")):
            raise InvalidRequest(f"There is no format {format!r}.", did_you_mean(format, formats))
        return format
    if output is None:
        return ""
    if Path(output).suffix in (".html", ".json"):
        return Path(output).suffix[1:]
    from autotune.report.formats import format_of

    return format_of(Path(output))


def _export(result: "TuningResult", format: str, output: str | None, columns: str | None, folder: Path) -> None:
    from autotune.report.formats import FORMATS, formatted, only

    table = result.to_frame()
    if columns is not None:
        table = only(table, [name.strip() for name in columns.split(",")])
    if output is None and format == "parquet":
        output = f"{folder.resolve().name}{FORMATS[format].suffix}"
    _write(formatted(table, format), output)


def _write(content: str | bytes, output: str | None) -> None:
    from autotune.report.files import write_file

    if output is None:
        print(content, end="")
    else:
        path = write_file(Path(output), content)
        print(f"Written: {shown(path)}")


def _log(result: "TuningResult", names: Sequence[str], folder: Path) -> None:
    """Record a finished study in loggers; exits with 1 if one of them failed."""
    from autotune.report.loggers.guarded import LoggerGroup

    loggers = LoggerGroup(names, result.request.objective, folder)
    loggers.start(result)
    loggers.finish(result)
    if loggers.problems:
        raise typer.Exit(AutotuneError.exit_code)
