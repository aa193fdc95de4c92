"""`autotune studies` and `autotune report`: what earlier searches left."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.common import PAGE, ErrorReporter, shown
from autotune.cli.completion import complete_study
from autotune.core.errors import AutotuneError, InvalidRequest, did_you_mean
from autotune.study.store import study_folder

if TYPE_CHECKING:
    import pandas as pd

    from autotune.commands.result import TuningResult

Option = typer.Option

TABLES = ("csv", "parquet", "jsonl", "markdown", "latex", "xlsx")
"""Formats of the trials' table, as `autotune.report.formats` has them: naming them here loads no pandas."""


def studies(
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the studies as one JSON object on standard output.")] = False,
) -> None:
    """List the studies in a folder: trials, best, speed-up."""
    with ErrorReporter(as_json) as answer:
        from autotune.commands.result import TuningResult
        from autotune.report.summary import headline

        folders = sorted(path.parent for path in Path(output_dir).glob("*/request.json"))
        known = []
        if not folders and not as_json:
            print(f"No studies in {output_dir}.")
        for folder in folders:
            try:
                result = TuningResult.load(folder)
                said = f"{len(result.trials)} trial(s). {headline(result)}"
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
    format: Annotated[
        str | None,
        Option(
            help="The trials' table as csv, parquet, jsonl, markdown, latex or xlsx; the page as html; the answer as json. "
            "Default: as --output ends, else the summary."
        ),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            help="Where to write it. Default: standard output; of parquet and xlsx a file here, named like the study."
        ),
    ] = None,
    columns: Annotated[
        str | None, Option(help="A,B: only these columns of the table, in this order.", metavar="A,B")
    ] = None,
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the result as one JSON object.")] = False,
    report_to: Annotated[
        list[str] | None,
        Option(
            help="Loggers to tell the study too: tensorboard, wandb, mlflow or trackio. Repeatable, or with commas.",
            metavar="NAME",
        ),
    ] = None,
) -> None:
    """Write a study's report again and print its summary; or its trials' table in another program's format."""
    with ErrorReporter(as_json) as answer:
        kind = _kind(format, output, as_json)
        if columns is not None and kind not in TABLES:
            raise InvalidRequest("--columns chooses from the trials' table.", f"Add --format {', '.join(TABLES)}.")
        from autotune.commands.result import TuningResult
        from autotune.core.request import check_installed, loggers_named
        from autotune.report.summary import summary

        folder = study_folder(study, output_dir)
        names = loggers_named(report_to)
        check_installed(names)
        result = TuningResult.load(folder)
        if kind in TABLES:
            _table(result.to_frame(), kind, output, columns, folder)
            _tell(result, names, folder)
            return
        result.save(folder)
        if kind == "html":
            _page(folder, output)
        elif as_json:
            answer.json(result.to_dict())
        elif kind == "json":
            _text(json.dumps(result.to_dict(), indent=1) + "\n", output)
        else:
            _text(summary(result) + "\n", output)
        _tell(result, names, folder)


def _kind(format: str | None, output: str | None, as_json: bool) -> str | None:
    """What is asked for: one of TABLES, html, json, or None for the summary. Raises InvalidRequest."""
    known = (*TABLES, "html", "json")
    if as_json and format not in (None, "json"):
        raise InvalidRequest(f"--json and --format {format} ask for two things.", "Pass only one of them.")
    if as_json and output is not None:
        raise InvalidRequest("--json prints on standard output.", "Write a file with --format json --output FILE.")
    if as_json or format is not None:
        if format is not None and format not in known:
            raise InvalidRequest(f"There is no format {format!r}.", did_you_mean(format, known))
        return "json" if as_json else format
    if output is None:
        return None
    if Path(output).suffix in (".html", ".json"):
        return Path(output).suffix[1:]
    from autotune.report.formats import format_of

    return format_of(Path(output))


def _table(table: "pd.DataFrame", kind: str, output: str | None, columns: str | None, folder: Path) -> None:
    from autotune.report.files import write_table
    from autotune.report.formats import FORMATS, made, only

    if columns is not None:
        table = only(table, [name.strip() for name in columns.split(",")])
    if output is None and kind not in ("parquet", "xlsx"):
        _text(str(made(table, kind)), None)
        return
    path = Path(output or f"{folder.resolve().name}{FORMATS[kind].suffix}")
    print(f"Written: {shown(write_table(path, table, kind))}")


def _text(text: str, output: str | None) -> None:
    from autotune.report.files import write_file

    if output is None:
        print(text, end="")
    else:
        print(f"Written: {shown(write_file(Path(output), text.encode()))}")


def _page(folder: Path, output: str | None) -> None:
    """Say where the page is, which was written a moment ago."""
    from autotune.report.files import write_file

    page = folder / PAGE
    print(f"Written: {shown(write_file(Path(output), page.read_bytes()) if output is not None else page)}")


def _tell(result: "TuningResult", names: Sequence[str], folder: Path) -> None:
    """Tell loggers of a study afterwards; exits with 1 where one of them failed."""
    from autotune.report.loggers.guarded import LoggerGroup

    loggers = LoggerGroup(names, result.request.objective, folder)
    loggers.start(result.request, result)
    loggers.finish(result, result.complete)
    if loggers.problems:
        raise typer.Exit(AutotuneError.exit_code)
