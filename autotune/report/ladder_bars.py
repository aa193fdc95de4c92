"""The guides' picture for this machine, as SVG: memory and speed of each method, side by side."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.ladder import THEIR_MACHINE, Climbed, Ladder
from autotune.report.ladder_table import head, short_outcome

GIB = 2**30
GREY = "#b8b8b8"
TITLE = 100
"""Letters in a line of the title."""


@dataclass(frozen=True)
class _Side:
    """One side of the picture, a value a row: what was read here, what the guides read (None where they read nothing)."""

    label: str
    color: str
    mine: Sequence[float | None]
    theirs: Sequence[float | None]
    errors: Sequence[Sequence[float]] | None = None


def ladder_bars(path: Path, ladder: Ladder) -> None:
    """Write an SVG: a row a method, its peak memory in GiB at the left, its samples / second with their interval at the right.

    A method without a figure says why in its place. Where the guides trained the same, theirs are the grey bars. Raises
    OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = ladder.climbed
    figure = Figure(figsize=(8.5, 1.8 + (0.46 if ladder.is_theirs else 0.32) * len(rows)), layout="constrained")
    for axes, side in zip(figure.subplots(1, 2, sharey=True), _sides(ladder), strict=True):
        _draw(axes, side, [short_outcome(one) for one in rows])
    axes = figure.axes[0]
    axes.set_yticks(range(len(rows)), [one.rung.name for one in rows])
    axes.invert_yaxis()  # the first method on top; the other axes share it
    figure.suptitle(textwrap.fill(head(ladder), TITLE), fontsize="medium")
    if ladder.is_theirs:
        figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2)
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _sides(ladder: Ladder) -> tuple[_Side, _Side]:
    rows = ladder.climbed
    theirs = [one.rung.theirs if ladder.is_theirs else None for one in rows]
    return (
        _Side(
            "peak memory, GiB",
            "#4878a8",
            [one.peak_bytes / GIB if one.peak_bytes else None for one in rows],
            [one.peak_bytes / GIB if one else None for one in theirs],
        ),
        _Side(
            "samples / second",
            "#d1495b",
            [one.speed and one.speed.value for one in rows],
            [one.samples_per_second if one else None for one in theirs],
            list(zip(*map(_spread, rows), strict=True)),
        ),
    )


def _spread(one: Climbed) -> tuple[float, float]:
    """How far the interval reaches below and above the speed; at the most as far as the speed itself."""
    speed = one.speed
    return (speed - max(0.0, speed.low), min(speed.high, 2 * speed) - speed) if speed else (0.0, 0.0)


def _draw(axes: Any, side: _Side, without: Sequence[str]) -> None:
    """One bar a row with its number behind it, or the words for why it has none; the guides' below it."""
    pairs = [value is not None for value in side.theirs]
    thick = [0.4 if pair else 0.7 for pair in pairs]
    places = [row - 0.2 * pair for row, pair in enumerate(pairs)]
    lines = {"ecolor": "#444444", "capsize": 2, "error_kw": {"elinewidth": 1}}
    bars = axes.barh(
        places, [value or 0.0 for value in side.mine], thick, color=side.color, label="here", xerr=side.errors, **lines
    )
    texts = [_number(value) or why for value, why in zip(side.mine, without, strict=True)]
    axes.bar_label(bars, texts, padding=4, fontsize="small")
    known = {row: value for row, value in enumerate(side.theirs) if value is not None}
    if known:
        others = axes.barh(
            [row + 0.2 for row in known], list(known.values()), 0.4, color=GREY, label=f"the guides', {THEIR_MACHINE}"
        )
        axes.bar_label(
            others, [_number(value) for value in known.values()], padding=4, fontsize="small", color="#666666"
        )
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel(side.label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _number(value: float | None) -> str:
    """Three digits that count, and never an exponent."""
    if value is None:
        return ""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
