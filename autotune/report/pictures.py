"""Every figure of a report as text that goes into a page."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.report.figures import (
    bars,
    heat_map,
    importance,
    loss_curves,
    memory_parts,
    search_progress,
    speed_against_memory,
    step_time,
)
from autotune.report.figures.canvas import Drawing, file_svg, manner, page_svg
from autotune.study.result import SearchResult

Draw = Callable[[SearchResult], Drawing | None]

IN_TURN: tuple[Draw, ...] = (
    speed_against_memory.draw,
    bars.draw,
    heat_map.draw,
    step_time.draw,
    memory_parts.draw,
    search_progress.draw,
    importance.draw,
    loss_curves.draw,
)
"""As they are read."""

FILES: dict[str, Draw] = {
    "speed_against_memory.svg": speed_against_memory.draw,
    "loss_curves.svg": loss_curves.draw,
}
"""Figures that are files of their own too."""


@dataclass(frozen=True)
class Picture:
    """One figure: name: short, for links and file names; title and caption: plain text; svg: an `<svg>` element with a viewBox.

    Colours are CSS variables of the page (`var(--ink)`, `var(--accent)`, ...), so that it is read in light and dark.
    """

    name: str
    title: str
    caption: str
    svg: str


def pictures(result: SearchResult) -> list[Picture]:
    """The figures that these facts allow, in the order in which they are read."""
    with manner():
        drawn = [draw(result) for draw in IN_TURN]
        return [Picture(one.name, one.title, one.caption, page_svg(one)) for one in drawn if one is not None]


def picture_files(result: SearchResult) -> dict[str, str | None]:
    """File name -> a whole SVG file with the study's name above it; None where the facts do not allow it."""
    with manner():
        drawn = {name: draw(result) for name, draw in FILES.items()}
        return {name: None if one is None else file_svg(one, result.name) for name, one in drawn.items()}
