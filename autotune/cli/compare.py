"""`autotune compare`: command of `autotune.compare`, and its table on a terminal."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.core.paths import shown

if TYPE_CHECKING:
    from rich.console import Console


def compare(
    studies: Annotated[
        list[str],
        typer.Argument(help="Names or folders of studies.", metavar="STUDY"),
    ],
    price_per_hour: Annotated[
        list[str] | None,
        typer.Option(
            help="Price per hour of the hardware, as 2.50 or 2.50EUR; of one study as NAME=2.50. Repeatable.",
            metavar="[NAME=]PRICE",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Output folder for compare.csv, .parquet, .md and .svg.", metavar="PATH")
    ] = None,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
) -> None:
    """Compare studies: speed, memory and cost."""
    with ErrorReporter(as_json) as command:
        from rich.console import Console

        from autotune.commands.compare.run import FILES, compare
        from autotune.core.units import finite
        from autotune.report.formats import plain_rows

        rows = plain_rows(compare(studies, _prices(price_per_hour or []), output, output_dir))
        if as_json:
            plain = [{name: finite(v) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
            command.json({"studies": plain})
            return
        show(Console(highlight=False), rows)
        if output is not None:
            print(f"\nWritten: {', '.join(shown(Path(output) / name) for name in FILES)}")


def _prices(texts: list[str]) -> str | dict[str, str] | None:
    """One price for all, or study -> price. Raises InvalidRequest if both are given."""
    from autotune.core.errors import InvalidRequest

    named = {name: price for name, equals, price in (text.rpartition("=") for text in texts) if equals}
    bare = [text for text in texts if "=" not in text]
    if bare and (named or len(bare) > 1):
        raise InvalidRequest("There are several prices.", "Give one for all, or NAME=PRICE for each study.")
    return bare[0] if bare else named or None


def show(console: "Console", rows: list[dict[str, Any]]) -> None:
    """A numbered table of the figures, then a paragraph on each study; fits 80 columns."""
    from rich.table import Table
    from rich.text import Text

    from autotune.commands.compare.text import about, figures

    head, *body = figures(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, justify="right")
    for cells in body:
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print(Text("speeds in samples / second, with 95% intervals", style="dim"))
    for number, row in enumerate(rows, start=1):
        console.print()
        for place, line in enumerate(about(row)):
            first = f"{number}  " if place == 0 else "   "
            text = textwrap.fill(line, console.width, initial_indent=first, subsequent_indent="     ")
            console.print(text, markup=False, soft_wrap=True)
