"""Picture of the guides' methods on this machine, as SVG: memory and speed side by side."""

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

from autotune.commands.bars import bars_svg, draw_bars, draw_missing
from autotune.commands.guide.ladder import THEIR_MACHINE, Ladder
from autotune.commands.guide.table import short_outcome, title
from autotune.report.figures.canvas import ACCENT, BAD, MUTED

TITLE = 100
"""Characters in a line of the title."""


def ladder_svg(ladder: Ladder) -> str:
    """A row a method: peak memory left, samples / second with their interval right; the outcome where there is none.

    Where the guides trained the same, theirs are the grey bars.
    """
    rows = ladder.rows
    theirs = [row.method.theirs for row in rows] if ladder.is_theirs else []
    sizes = [row.peak_bytes for row in rows] + [figures.peak_bytes for figures in theirs if figures]
    name, unit = ("GiB", 2**30) if max(size or 0 for size in sizes) >= 2**30 else ("MiB", 2**20)
    height, shift = (0.4, -0.2) if theirs else (0.7, 0.0)

    def draw(axes: Any, color: str, ours: Sequence[float | None], of_guides: Sequence[float | None]) -> None:
        draw_bars(axes, ours, color, "", shift, height)
        if theirs:
            label = f"the guides' figures ({THEIR_MACHINE})" if color == ACCENT else ""
            draw_bars(axes, of_guides, MUTED, label, 0.2)
        draw_missing(axes, [short_outcome(row) for row in rows], shift)

    peaks = [row.peak_bytes and row.peak_bytes / unit for row in rows]
    their_peaks = [figures.peak_bytes / unit if figures else None for figures in theirs]
    their_speeds = [figures.samples_per_second if figures else None for figures in theirs]
    sides = {
        f"peak memory, {name}": partial(draw, color=ACCENT, ours=peaks, of_guides=their_peaks),
        "samples / second": partial(draw, color=BAD, ours=[row.speed for row in rows], of_guides=their_speeds),
    }
    lines = "\n".join(textwrap.fill(line, TITLE) for line in title(ladder))
    return bars_svg("guide", lines, [row.method.name for row in rows], sides, 0.46 if theirs else 0.32)
