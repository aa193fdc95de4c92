"""Axes of figures, in points; templates/figure.svg draws them and the marks on them."""

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import east_asian_width

from markupsafe import Markup

from autotune.core.trial import Trial
from autotune.report.templates import rendered, text_of

Place = tuple[float, float]
Dot = tuple[str, Place, Trial, str]
Stroke = tuple[str, str, Sequence[Place]]
Label = tuple[str, str, float, float, str]
"""Marks: each begins with the class of its colour. Places are values on the axes, a label's a place in the drawing."""

TEXT, LINE = 11.5, 15.0
"""Size of the text, and from one line of it to the next."""

_WIDTHS = (
    dict.fromkeys(" .,:;'|!()[]/-fijlrtI", 0.38)
    | dict.fromkeys("mwMW%@+", 0.93)
    | dict.fromkeys("ABCDEFGHKLNOPQRSTUVXYZ", 0.73)
)
_COLOURS = {role: pair for role, *pair in re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", text_of("palette.css"))}


@dataclass(frozen=True)
class Axis:
    """A linear scale from `low`, which is drawn at `start`, to `high` at `end`."""

    label: str
    low: float
    high: float
    start: float
    end: float
    whole: bool = False  # its ticks are whole numbers

    @classmethod
    def around(cls, label: str, values: Sequence[float], start: float, end: float, whole: bool = False) -> "Axis":
        """One with all these values, and room for their marks."""
        margin = 0.12 * (max(values) - min(values)) or 0.1 * abs(values[0]) or 1.0
        return cls(label, min(values) - margin, max(values) + margin, start, end, whole)

    def at(self, value: float) -> float:
        """The value's place; of one far outside no further than a renderer can count."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + min(max(share, -99.0), 99.0) * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """(place, text) of as many round numbers as have room; empty if `low` is `high`."""
        ticks: list[tuple[float, str]] = []
        span = self.high - self.low
        for most in range(9, 0, -1) if span > 0 else ():
            step = math.ceil(nice(span / most)) if self.whole else nice(span / most)
            digits = len(f"{step:.9f}".rstrip("0").partition(".")[2])
            values = [step * turn for turn in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
            ticks = [(self.at(value), f"{value:,.{digits}f}") for value in values]
            needed = LINE if self.end < self.start else max((text_width(text) for _, text in ticks), default=0.0)
            if needed + 8 < step / span * abs(self.end - self.start):
                break
        return ticks


@dataclass(frozen=True)
class Panel:
    """Two axes and what is drawn on them. In each mark: the class of its colour, and places as values on the axes."""

    x: Axis
    y: Axis
    title: str = ""
    dots: Sequence[Dot] = ()  # with the text on hovering
    lines: Sequence[Stroke] = ()  # with the SVG element
    labels: Sequence[Label] = ()  # text, where in the drawing, anchor


def drawn(
    title: str, panels: Sequence[Panel], heading: str = "", caption: str = "", legend: Sequence[tuple[str, str]] = ()
) -> str:
    """An `<svg>` element with the colours of a page, or with a heading a whole file. legend: (class, text)."""
    left = 8 + LINE * bool(panels[0].y.label) + max(text_width(text) for _, text in panels[0].y.ticks)
    width = left + panels[-1].x.end + LINE
    longest = max((text_width(text) for _, text in legend), default=0.0) + 3 * LINE
    return rendered(
        "figure.svg",
        title=title,
        panels=panels,
        caption=caption,
        heading=[part for line in heading.splitlines() for part in textwrap.wrap(line, int(width / (0.6 * TEXT)))],
        legend=legend,
        columns=max(1, int((width - left) / longest)),
        longest=longest,
        left=left,
        width=round(width, 1),
        style=Markup(f"{_style(0)}@media (prefers-color-scheme: dark) {{\n{_style(1)}}}\n") if heading else "",
        LINE=LINE,
    )


def nice(step: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)


def text_width(text: str) -> float:
    """About the width of the longest line, as in DejaVu Sans: the other usual fonts are narrower."""
    widths = {letter: 1.05 for letter in text if east_asian_width(letter) in "WF"} | _WIDTHS
    return TEXT * max(sum(widths.get(letter, 0.63) for letter in line) for line in text.split("\n"))


def _style(place: int) -> str:
    """The style sheet with real colours: 0 for light, 1 for dark."""
    return re.sub(r"var\(--(\w+)\)", lambda name: _COLOURS[name[1]][place], text_of("figure.css"))
