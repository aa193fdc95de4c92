"""Horizontal bars with 95 % intervals, side by side: the pictures of `compare` and `guide`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.core.interval import Interval
from autotune.core.units import three_digits
from autotune.report.figures.canvas import INK, MUTED, Drawing, figure_style, file_svg, legend_below, new_figure


def bars_svg(
    name: str, title: str, rows: Sequence[str], sides: Mapping[str, Callable[[Any], None]], row_height: float
) -> str:
    """An SVG file: the first row on top. sides: label of axes -> what draws on them. row_height: inches."""
    with figure_style():
        figure = new_figure(1.8 + row_height * max(1, len(rows)), 8.5)
        all_axes = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
        for axes, (label, draw) in zip(all_axes, sides.items(), strict=True):
            draw(axes)
            axes.set_xlabel(label)
            axes.margins(x=0.3)
            axes.set_xlim(left=0)
            axes.grid(axis="x")
            axes.tick_params(axis="y", length=0)
        all_axes[0].set_yticks(range(len(rows)), rows)
        all_axes[0].set_ylim(max(1, len(rows)) - 0.4, -0.6)
        legend_below(figure, 2)
        return file_svg(Drawing(name, title, "", figure), title)


def draw_bars(
    axes: Any,
    values: Sequence[float | None],
    color: str,
    label: str = "",
    shift: float = 0.0,
    height: float = 0.4,
    texts: Sequence[str] = (),
) -> None:
    """A bar a row, none for None. shift: below the row, in rows. texts: behind the bars, by default the values."""
    bars = [(row, value) for row, value in enumerate(values) if value is not None]
    spreads = [_spread(value) for _, value in bars if isinstance(value, Interval)]
    errors = {"xerr": list(zip(*spreads, strict=True)), "ecolor": INK, "capsize": 2} if spreads else {}
    places, lengths = [row + shift for row, _ in bars], [float(value) for _, value in bars]
    drawn = axes.barh(places, lengths, height, color=color, label=label, **errors)
    shown = [texts[row] if texts else three_digits(value) for row, value in bars]
    axes.bar_label(drawn, shown, padding=4, fontsize="small")


def draw_missing(axes: Any, texts: Sequence[str], shift: float = 0.0) -> None:
    """Words in the rows without a bar; empty for the others."""
    place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
    for row, text in enumerate(texts):
        if text:
            axes.annotate(text, (0, row + shift), fontsize="small", color=MUTED, **place)


def _spread(value: Interval) -> tuple[float, float]:
    """How far the interval reaches below and above the value: at most as far as the value itself."""
    return value - max(0.0, value.low), min(value.high, 2 * value) - value
