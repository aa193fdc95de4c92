"""Horizontal bars with 95 % intervals, side by side: the figures of `compare` and `guide`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autotune.core.interval import Interval
from autotune.core.units import three_digits
from autotune.report.axes import Axis, Legend, Panel, Place, drawn, text_width

ROOM, STEP = 215.0, 240.0
"""Points of an axis, and from one to the next."""


class Side(NamedTuple):
    """Bars on an axis of their own. missing: words in rows without a bar. units: of the rows' numbers."""

    label: str
    series: Mapping[str, Sequence[float | None]]  # class of a colour -> values of the rows
    missing: Sequence[str] = ()
    units: Sequence[str] = ()


def bars_svg(heading: str, names: Sequence[str], sides: Sequence[Side], legend: Legend) -> str:
    """An SVG file: a row a name, the first on top."""
    panels, others = [], len(sides[0].series) - 1
    y = Axis("", len(names) - 0.5, -0.5, len(names) * (23.0 + 17 * others), 0.0, names=names)
    for turn, (label, series, missing, units) in enumerate(sides):
        bars = [
            (role, value, row + 0.4 * place - 0.2 * others, 0.4 if others else 0.7, _whisker(value))
            for place, (role, values) in enumerate(series.items())
            for row, value in enumerate(values)
            if value is not None
        ]
        texts = [f"{three_digits(bar[1])} {units[round(bar[2])] if units else ''}".strip() for bar in bars]
        ends = [whisker[1] if whisker else value for _, value, _, _, whisker in bars]
        longest = [end / (1 - (text_width(text) + 5) / ROOM) for end, text in zip(ends, texts, strict=True)]
        x = Axis(label, 0.0, max(longest, default=0.0), STEP * turn, STEP * turn + ROOM)
        labels = [("small", text, x.at(end), y.at(bar[2])) for text, end, bar in zip(texts, ends, bars, strict=True)]
        labels += [("muted small", text, x.start, y.at(row - 0.2 * others)) for row, text in enumerate(missing) if text]
        moved = [(role, text, right + 5, down + 3.5, "start") for role, text, right, down in labels]
        panels.append(Panel(x, y, bars=bars, labels=moved))
    return drawn(heading, panels, heading, legend=legend)


def _whisker(value: float) -> Place | None:
    """The interval, to the right at most as far as the value itself."""
    return (max(0.0, value.low), min(value.high, 2 * value)) if isinstance(value, Interval) else None
