"""The guides' picture for this machine, as SVG: memory and speed of each method, side by side."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.commands.guide.ladder import THEIR_MACHINE, Ladder
from autotune.commands.guide.table import head, short_outcome
from autotune.core.interval import Interval
from autotune.core.units import three_digits

MIB, GIB = 2**20, 2**30
GREY = "#b8b8b8"
LEGEND: dict[str, Any] = {"frameon": False, "loc": "outside lower center"}
TITLE = 100
"""Letters in a line of the title."""


@dataclass(frozen=True)
class _Side:
    """One side of the picture, a value a row: what was read here, what the guides read (None where they read nothing).

    spreads: how far the interval of each value that there is reaches below and above it.
    """

    label: str
    color: str
    mine: Sequence[float | None]
    theirs: Sequence[float | None]
    spreads: Sequence[tuple[float, float]] = ()


def ladder_bars(path: Path, ladder: Ladder) -> None:
    """Write an SVG: a row a method, its peak memory at the left, its samples / second with their interval at the right.

    A method without a figure says why in its place. Where the guides trained the same, theirs are the grey bars. Raises
    OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = ladder.climbed
    figure = Figure(figsize=(8.5, 1.8 + (0.46 if ladder.is_theirs else 0.32) * len(rows)), layout="constrained")
    for axes, side in zip(figure.subplots(1, 2, sharey=True), _sides(ladder), strict=True):
        _draw(axes, side, [short_outcome(one) for one in rows])
    axes = figure.axes[0]
    axes.set_yticks(range(len(rows)), [one.rung.name for one in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first method on top; the other axes share it
    figure.suptitle("\n".join(textwrap.fill(line, TITLE) for line in head(ladder)), fontsize="medium")
    if ladder.is_theirs:
        figure.legend([Patch(color=GREY)], [f"the guides' figures ({THEIR_MACHINE})"], **LEGEND)
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _sides(ladder: Ladder) -> tuple[_Side, _Side]:
    rows = ladder.climbed
    theirs = [one.rung.theirs if ladder.is_theirs else None for one in rows]
    peaks, their_peaks = [one.peak_bytes for one in rows], [one.peak_bytes if one else None for one in theirs]
    name, unit = ("GiB", GIB) if max(peak or 0 for peak in (*peaks, *their_peaks)) >= GIB else ("MiB", MIB)
    return (
        _Side(
            f"peak memory, {name}",
            "#4878a8",
            [peak and peak / unit for peak in peaks],
            [peak and peak / unit for peak in their_peaks],
        ),
        _Side(
            "samples / second",
            "#d1495b",
            [one.speed and one.speed.value for one in rows],
            [one.samples_per_second if one else None for one in theirs],
            [_spread(one.speed) for one in rows if one.speed],
        ),
    )


def _spread(speed: Interval) -> tuple[float, float]:
    """How far the interval reaches below and above the speed; at the most as far as the speed itself."""
    return speed - max(0.0, speed.low), min(speed.high, 2 * speed) - speed


def _draw(axes: Any, side: _Side, without: Sequence[str]) -> None:
    """One bar a row with its number behind it, or the words for why it has none; the guides' below it."""
    pairs = [value is not None for value in side.theirs]
    _bars(axes, [row - 0.2 * pair for row, pair in enumerate(pairs)], side.mine, pairs, side.spreads, color=side.color)
    if any(pairs):
        known = [value for value in side.theirs if value is not None]
        rows = [row + 0.2 for row, pair in enumerate(pairs) if pair]
        _bars(axes, rows, known, [True] * len(rows), color=GREY)
    for row, (value, why) in enumerate(zip(side.mine, without, strict=True)):
        if value is None:
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(why, (0, row - 0.2 * pairs[row]), fontsize="small", color="#666666", **place)
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel(side.label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(
    axes: Any,
    rows: Sequence[float],
    values: Sequence[float | None],
    thin: Sequence[bool],
    spreads: Sequence[tuple[float, float]] = (),
    **how: Any,
) -> None:
    """The bars of those rows that have a value, each with its number behind it and its interval."""
    known = [(row, value, 0.4 if half else 0.7) for row, value, half in zip(rows, values, thin, strict=True) if value]
    if not known:
        return
    places, lengths, thick = zip(*known, strict=True)
    errors = {"xerr": list(zip(*spreads, strict=True)), "ecolor": "#444444", "capsize": 2} if spreads else {}
    bars = axes.barh(places, lengths, thick, **how, **errors)
    axes.bar_label(bars, [three_digits(value) for value in lengths], padding=4, fontsize="small")
