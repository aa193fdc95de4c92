"""Stacked bars: what something is made of, a bar a trial."""

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.figures.canvas import INK, PARTS, SMALL, legend_below, new_figure
from autotune.report.figures.words import number

ROW, REST = 0.52, 1.15
"""Inches: of a bar with its name above it, and of the axis and the legend below."""


def stacked(names: Sequence[str], parts: Sequence[Mapping[str, float]], label: str, marks: Sequence[float] = ()) -> Any:
    """A figure with a bar for each name, its total behind it. parts: of each bar, name -> length, all in the same order.

    marks: of each bar, another length to mark with a line; 0 for none. label: of the axis, with its unit.
    """
    figure = new_figure(ROW * len(names) + REST)
    axes = figure.add_subplot()
    left = [0.0] * len(names)
    for part, colour in zip(parts[0], PARTS, strict=False):
        lengths = [one[part] for one in parts]
        if any(lengths):
            axes.barh([row + 0.12 for row in range(len(names))], lengths, 0.44, left, color=colour, label=part)
        left = [before + length for before, length in zip(left, lengths, strict=True)]
    for row, (name, total) in enumerate(zip(names, left, strict=True)):
        mark = marks[row] if marks else 0.0
        axes.text(0, row - 0.3, name, fontsize=SMALL, va="center", clip_on=False, in_layout=False)
        end = (max(total, mark), row + 0.12)
        axes.annotate(number(total), end, (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
    if any(marks):
        rows = [row for row, mark in enumerate(marks) if mark]
        lows, highs = [row - 0.15 for row in rows], [row + 0.4 for row in rows]
        axes.vlines([marks[row] for row in rows], lows, highs, INK, linewidth=2, label="measured peak")
    axes.set(ylim=(len(names) - 0.45, -0.5), yticks=[], xlabel=label)
    axes.set_xlim(0, 1.12 * max([*left, *marks, 1e-12]))
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    legend_below(figure, 3)
    return figure
