"""Text, tables and intervals as all commands write them."""

import textwrap
from collections.abc import Iterable, Sequence

from autotune.core.interval import Interval
from autotune.core.units import finite
from autotune.report.markdown import markdown_text, one_line

WIDTH = 80
"""Columns of a terminal that every text fits."""


def wrapped(text: str, first: str = "", further: str = "  ") -> list[str]:
    """The text as lines of a terminal; first, further: indentation of the first and of all other lines."""
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=first, subsequent_indent=further)


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns as wide as their widest cell: the first `left` and a last one of words to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        words_last = row[-1] != "-" and not row[-1][:1].isdigit()
        to_left = [place < left or (words_last and place == len(row) - 1) for place in range(len(row))]
        cells = [
            cell.ljust(width) if at_left else cell.rjust(width)
            for cell, width, at_left in zip(row, widths, to_left, strict=True)
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def markdown_table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table: the first row is the head, the first column words, all others numbers."""
    head, *body = ([markdown_text(cell) for cell in row] for row in rows)
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *body)]


def interval_fields(name: str, value: Interval | None) -> dict[str, float | None]:
    """`name`, `name_low` and `name_high` for JSON: None where unknown, or for an upper end without bound."""
    if value is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": finite(value.high)}


def ratio_text(ratio: Interval | None) -> str:
    """`1.31x (1.22 to 1.40)`, or a dash."""
    if ratio is None:
        return "-"
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {f'{ratio.high:.2f}' if ratio.high < 1e6 else 'inf'})"
