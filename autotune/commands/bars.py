"""Horizontal bars with 95 % intervals, side by side: the pictures of `compare` and `guide`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.interval import Interval
from autotune.core.units import three_digits
from autotune.report.figures.canvas import INK, MUTED, Drawing, figure_style, file_svg, legend_below, new_figure


@dataclass(frozen=True)
class Bars:
    """Bars of one colour, a value a row; None: no bar. shift: of the bars below their rows, in rows.

    texts: behind the bars, by default the values. label: in the legend.
    """

    values: Sequence[float | None]
    color: str
    label: str = ""
    shift: float = 0.0
    height: float = 0.4
    texts: Sequence[str] = ()


@dataclass(frozen=True)
class Side:
    """One of the axes side by side. missing: a row's words where it has no bar, else empty. note: words instead of bars."""

    label: str
    bars: Sequence[Bars] = ()
    missing: Sequence[str] = ()
    note: str = ""


def bars_svg(name: str, title: str, rows: Sequence[str], sides: Sequence[Side], row_height: float) -> str:
    """An SVG file: the first row on top. row_height: inches."""
    with figure_style():
        figure = new_figure(1.8 + row_height * max(1, len(rows)), 8.5)
        every_axes = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
        for axes, side in zip(every_axes, sides, strict=True):
            _draw(axes, side)
        every_axes[0].set_yticks(range(len(rows)), rows)
        every_axes[0].set_ylim(max(1, len(rows)) - 0.4, -0.6)
        legend_below(figure, 2)
        return file_svg(Drawing(name, title, "", figure), title)


def _draw(axes: Any, side: Side) -> None:
    axes.set_xlabel(side.label)
    if side.note:
        axes.text(0.5, 0.5, side.note, transform=axes.transAxes, ha="center", va="center")
        axes.set_xticks([])
    for bars in side.bars:
        _draw_bars(axes, bars)
    for row, text in enumerate(side.missing):
        if text:
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(text, (0, row + side.bars[0].shift), fontsize="small", color=MUTED, **place)
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)


def _draw_bars(axes: Any, bars: Bars) -> None:
    rows = [row for row, value in enumerate(bars.values) if value is not None]
    values = [value for value in bars.values if value is not None]
    spreads = [_spread(value) for value in values if isinstance(value, Interval)]
    errors = {"xerr": list(zip(*spreads, strict=True)), "ecolor": INK, "capsize": 2} if spreads else {}
    places = [row + bars.shift for row in rows]
    drawn = axes.barh(places, list(map(float, values)), bars.height, color=bars.color, label=bars.label, **errors)
    texts = [bars.texts[row] if bars.texts else three_digits(value) for row, value in zip(rows, values, strict=True)]
    axes.bar_label(drawn, texts, padding=4, fontsize="small")


def _spread(value: Interval) -> tuple[float, float]:
    """How far the interval reaches below and above the value: at most as far as the value itself."""
    return value - max(0.0, value.low), min(value.high, 2 * value) - value
