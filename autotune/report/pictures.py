"""Figures of a report as SVG: for its page, and as files."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.report.figures import (
    bars,
    heat_map,
    loss_curves,
    memory_parts,
    search_progress,
    speed_against_memory,
    step_time,
)
from autotune.report.figures.canvas import Drawing, figure_style, file_svg, page_svg
from autotune.study.result import SearchResult

Draw = Callable[[SearchResult], Drawing | None]

FIGURES: tuple[Draw, ...] = (
    speed_against_memory.draw,
    bars.draw,
    heat_map.draw,
    step_time.draw,
    memory_parts.draw,
    search_progress.draw,
    loss_curves.draw,
)
"""In the order of the page."""

FILES: dict[str, Draw] = {
    "speed_against_memory.svg": speed_against_memory.draw,
    "loss_curves.svg": loss_curves.draw,
}
"""Figures that are files of their own too."""


@dataclass(frozen=True)
class Picture:
    """One figure. Colours are CSS variables of the page (`var(--ink)`, ...), so that it is readable in light and dark."""

    name: str  # short, for links and file names
    title: str
    caption: str
    svg: str  # an `<svg>` element with a viewBox


def pictures(result: SearchResult) -> list[Picture]:
    """The figures that this result has the numbers for, in the order of the page."""
    with figure_style():
        drawings = [drawing for draw in FIGURES if (drawing := draw(result)) is not None]
        return [Picture(drawing.name, drawing.title, drawing.caption, page_svg(drawing)) for drawing in drawings]


def picture_files(result: SearchResult) -> dict[str, str | None]:
    """File name -> an SVG file with the study's name above the figure; None where the result has not the numbers for it."""
    with figure_style():
        drawings = {name: draw(result) for name, draw in FILES.items()}
        return {name: file_svg(drawing, result.name) if drawing else None for name, drawing in drawings.items()}
