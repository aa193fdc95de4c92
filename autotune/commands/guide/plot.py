"""Picture of the guides' methods on this machine, as SVG: memory and speed side by side."""

import textwrap

from autotune.commands.bars import Bars, Side, bars_svg
from autotune.commands.guide.ladder import THEIR_MACHINE, Ladder
from autotune.commands.guide.table import short_outcome, title
from autotune.report.figures.canvas import ACCENT, BAD, MUTED

TITLE = 100
"""Characters in a line of the title."""


def ladder_svg(ladder: Ladder) -> str:
    """A row a method: peak memory left, samples / second with their interval right; the outcome where there is none.

    Where the guides trained the same, theirs are the grey bars.
    """
    rows, missing = ladder.rows, [short_outcome(row) for row in ladder.rows]
    theirs = [row.method.theirs if ladder.is_theirs else None for row in rows]
    sizes = [row.peak_bytes for row in rows] + [figures.peak_bytes for figures in theirs if figures]
    name, unit = ("GiB", 2**30) if max(size or 0 for size in sizes) >= 2**30 else ("MiB", 2**20)
    height, shift = (0.4, -0.2) if ladder.is_theirs else (0.7, 0.0)
    peaks = [Bars([row.peak_bytes and row.peak_bytes / unit for row in rows], ACCENT, "", shift, height)]
    speeds = [Bars([row.speed for row in rows], BAD, "", shift, height)]
    if ladder.is_theirs:
        label = f"the guides' figures ({THEIR_MACHINE})"
        peaks.append(Bars([figures.peak_bytes / unit if figures else None for figures in theirs], MUTED, label, 0.2))
        speeds.append(Bars([figures.samples_per_second if figures else None for figures in theirs], MUTED, "", 0.2))
    sides = [Side(f"peak memory, {name}", peaks, missing), Side("samples / second", speeds, missing)]
    lines = "\n".join(textwrap.fill(line, TITLE) for line in title(ladder))
    return bars_svg("guide", lines, [row.method.name for row in rows], sides, 0.46 if ladder.is_theirs else 0.32)
