"""`autotune compare`: command of `autotune.compare`, and its table on a terminal."""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.core.paths import shown


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
        str | None, typer.Option(help="Output file: .csv, .parquet, .jsonl or .md.", metavar="FILE")
    ] = None,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
) -> None:
    """Compare studies: speed, memory and cost."""
    with ErrorReporter(as_json) as command:
        from autotune.commands.compare.run import compare
        from autotune.commands.compare.text import compared_lines
        from autotune.core.units import finite
        from autotune.report.formats import plain_rows

        rows = plain_rows(compare(studies, _prices(price_per_hour or []), output, output_dir))
        plain = [{name: finite(v) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
        written = [] if output is None else ["", f"Written: {shown(Path(output))}"]
        command.show({"studies": plain}, [*compared_lines(rows), *written])


def _prices(texts: list[str]) -> str | dict[str, str] | None:
    """One price for all, or study -> price. Raises InvalidRequest if both are given."""
    from autotune.core.errors import InvalidRequest

    named = {name: price for name, equals, price in (text.rpartition("=") for text in texts) if equals}
    bare = [text for text in texts if "=" not in text]
    if bare and (named or len(bare) > 1):
        raise InvalidRequest("There are several prices.", "Give one for all, or NAME=PRICE for each study.")
    return bare[0] if bare else named or None
