"""Rows of a chart: a trial's name in whole lines with its bars below it, and bars that are stacked of parts."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report.figures.canvas import INK, PARTS, SMALL, WIDTH, new_figure

LETTERS, LINES = 66, 3
"""Letters of a line across the whole figure, and lines of a name at the most."""

LINE, BAR, GAP = 0.145, 0.19, 0.1
"""Inches of a line of text, of a bar, and between a bar and the next name."""

AXIS, LEGEND = 0.45, 0.17
"""Inches of the axis with its label below the rows, and of a line of the legend."""

MARGIN = 0.1
"""Inches left of the bars."""

LETTER = 0.018
"""Width of a letter behind a bar, as a share of the axis."""


@dataclass(frozen=True)
class Row:
    """One row. lines: its name; top: where it begins, inches from the top of the rows."""

    lines: Sequence[str]
    top: float

    @property
    def middle(self) -> float:
        """Of its bar, inches from the top of the rows."""
        return self.top + LINE * len(self.lines) + 0.03 + BAR / 2

    @property
    def bottom(self) -> float:
        return self.middle + BAR / 2 + GAP


def rows_of(names: Sequence[str], letters: int = LETTERS) -> list[Row]:
    """A row for each name, one below the other."""
    rows: list[Row] = []
    for name in names:
        lines = textwrap.wrap(name, letters, max_lines=LINES, placeholder=" …", subsequent_indent="   ")
        rows.append(Row(lines, rows[-1].bottom if rows else 0.0))
    return rows


def write_names(axes: Any, rows: Sequence[Row], bold: Sequence[bool]) -> None:
    """The names above their bars, from the left edge of these axes on."""
    for row, heavy in zip(rows, bold, strict=True):
        for place, line in enumerate(row.lines):
            y = row.top + LINE * (place + 0.55)
            weight = "bold" if heavy else "normal"
            axes.text(0, y, line, fontsize=SMALL, va="center", fontweight=weight, clip_on=False)


def axes_of(figure: Any, rows: Sequence[Row], left: float, width: float) -> Any:
    """Axes for these rows at the top of the figure, measured in inches from there down. left, width: inches."""
    height, deep = figure.get_figheight(), rows[-1].bottom
    axes = figure.add_axes((left / WIDTH, 1 - deep / height, width / WIDTH, deep / height))
    axes.set(ylim=(deep, 0), yticks=[])
    axes.spines["left"].set_visible(False)
    return axes


def stacked(
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    label: str,
    ends: Sequence[str],
    marks: Sequence[float] = (),
) -> Any:
    """A figure with a bar for each name. parts: of each bar, name -> length, all in the same order; ends: what stands behind
    each; marks: of each bar, a length to mark as the measured peak, 0 for none. label: of the axis, with its unit.
    """
    rows = rows_of(names)
    shown = [name for name in parts[0] if any(one[name] for one in parts)]
    legend = -(-(len(shown) + any(marks)) // 3) * LEGEND + 0.1
    figure = new_figure(rows[-1].bottom + AXIS + legend, layout=None)
    axes = axes_of(figure, rows, MARGIN, WIDTH - 3 * MARGIN)
    write_names(axes, rows, [False] * len(rows))
    middles = [row.middle for row in rows]
    left = [0.0] * len(rows)
    for part, colour in zip(shown, PARTS, strict=False):
        lengths = [one[part] for one in parts]
        axes.barh(middles, lengths, BAR, left, color=colour, label=part)
        left = [before + length for before, length in zip(left, lengths, strict=True)]
    most = max([*left, *marks, 1e-12]) * (1 + LETTER * max(map(len, ends)))
    for row, (length, end) in enumerate(zip(left, ends, strict=True)):
        mark = marks[row] if marks else 0.0
        in_the_way = length < mark < length + LETTER * (len(end) + 1) * most
        place = (mark if in_the_way else length, middles[row])
        axes.annotate(end, place, (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
    if any(marks):
        known = [(mark, y - 0.13, y + 0.13) for mark, y in zip(marks, middles, strict=True) if mark]
        axes.vlines(*zip(*known, strict=True), color=INK, linewidth=2, label="measured peak")
    axes.set(xlim=(0, most), xlabel=label)
    figure.legend(loc="lower center", ncols=3, handlelength=1.6, columnspacing=1.2, borderaxespad=0.1)
    return figure
