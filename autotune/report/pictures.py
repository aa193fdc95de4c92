"""Figures of a report as SVG: for its page, and as files."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.report.figures import loss_curves, search_progress, speed_against_memory
from autotune.report.figures.canvas import Drawing, figure_style, file_svg, page_svg
from autotune.report.figures.trials import trial_titles
from autotune.study.result import SearchResult

Draw = Callable[[SearchResult], Drawing | None]

FIGURES: dict[str, Draw] = {
    "every trial that fits": speed_against_memory.draw,
    "trial by trial, and what may be left": search_progress.draw,
    "answer and fp32, step by step": loss_curves.draw,
}
"""What each shows -> how it is drawn, in the order of the page."""

FILES: dict[str, Draw] = {"speed_against_memory.svg": speed_against_memory.draw}
"""Figures that are files of their own too."""


@dataclass(frozen=True)
class Picture:
    """One figure. Colours are CSS variables of the page (`var(--ink)`, ...), so that it is readable in light and dark."""

    name: str  # short, for links and file names
    title: str
    hint: str  # what it shows
    caption: str
    svg: str  # an `<svg>` element with a viewBox


def pictures(result: SearchResult) -> list[Picture]:
    """The figures that this result has the numbers for, in the order of the page."""
    titles, made = trial_titles(result), []
    with figure_style():
        for hint, draw in FIGURES.items():
            if (drawing := draw(result)) is not None:
                made.append(Picture(drawing.name, drawing.title, hint, drawing.caption, page_svg(drawing, titles)))
    return made


def picture_files(result: SearchResult) -> dict[str, str | None]:
    """File name -> an SVG file with its claim above the figure; None where the result has not the numbers for it."""
    with figure_style():
        drawings = {name: draw(result) for name, draw in FILES.items()}
        return {name: file_svg(drawing, drawing.file_title) if drawing else None for name, drawing in drawings.items()}
