"""`autotune compare`: a thin door on `autotune.commands.compare.run`, and its table on a terminal."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.common import ErrorReporter, shown
from autotune.cli.completion import complete_study

if TYPE_CHECKING:
    from rich.console import Console

Option = typer.Option


def compare(
    studies: Annotated[
        list[str], typer.Argument(help="Names of studies, or their folders.", autocompletion=complete_study)
    ],
    price_per_hour: Annotated[
        list[str] | None,
        Option(
            help="Price of what they trained on, as 2.50 or 2.50EUR; of one study as NAME=2.50. Repeatable.",
            metavar="[NAME=]PRICE",
        ),
    ] = None,
    output: Annotated[str | None, Option(help="Where to write compare.csv, .parquet, .md and .svg: a folder.")] = None,
    output_dir: Annotated[str, Option(help="Where report folders are.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the rows as one JSON object.")] = False,
) -> None:
    """Put several studies side by side: speeds, speed-ups, memory, and what a million samples cost."""
    with ErrorReporter(as_json) as answer:
        from rich.console import Console

        from autotune.commands.compare.files import COMPARED_FILES
        from autotune.commands.compare.run import compare as compared
        from autotune.core.units import finite
        from autotune.report.formats import plain_rows

        table = compared(studies, _prices(price_per_hour or []), output, output_dir)
        rows = plain_rows(table)
        if as_json:
            told = [{name: finite(one) if isinstance(one, float) else one for name, one in row.items()} for row in rows]
            answer.json({"studies": told})
            return
        show(Console(highlight=False), rows)
        if output is not None:
            print(f"\nWritten: {', '.join(shown(Path(output) / name) for name in COMPARED_FILES)}")


def _prices(texts: list[str]) -> str | dict[str, str] | None:
    """One price for all, or one for each study that is named. Raises InvalidRequest where both are given."""
    from autotune.core.errors import InvalidRequest

    named = {name: price for name, equals, price in (text.rpartition("=") for text in texts) if equals}
    bare = [text for text in texts if "=" not in text]
    if bare and (named or len(bare) > 1):
        raise InvalidRequest("There are several prices.", "Give one for all, or NAME=PRICE for each study.")
    return bare[0] if bare else named or None


def show(console: "Console", rows: list[dict[str, Any]]) -> None:
    """A numbered table of the figures, then what each study was; fits 80 columns."""
    from rich.table import Table
    from rich.text import Text

    from autotune.commands.compare.text import about, figures, head

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head(rows):
        table.add_column(name, justify="right")
    for cells in figures(rows):
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    console.print(Text("speeds in samples / second, with 95 % intervals", style="dim"))
    for number, row in enumerate(rows, start=1):
        console.print()
        for place, line in enumerate(about(row)):
            first = f"{number}  " if place == 0 else "   "
            told = textwrap.fill(line, console.width, initial_indent=first, subsequent_indent="     ")
            console.print(told, markup=False, soft_wrap=True)
