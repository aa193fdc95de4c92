"""Picture of the guides' methods on this machine, as SVG: memory and speed side by side."""

from autotune.commands.bars import Side, bars_svg
from autotune.commands.guide.ladder import THEIR_MACHINE, Ladder
from autotune.commands.guide.table import short_outcome, title
from autotune.report.figures import memory_unit


def ladder_svg(ladder: Ladder) -> str:
    """A row a method: peak memory left, samples / second with their interval right; the outcome if there is none.

    If the guides trained the same, theirs are the grey bars.
    """
    rows = ladder.rows
    theirs = [row.method.theirs for row in rows] if ladder.is_theirs else []
    name, unit = memory_unit([*(row.peak_bytes for row in rows), *(run.peak_bytes for run in theirs if run)])
    peaks: dict[str, list[float | None]] = {"p3": [row.peak_bytes and row.peak_bytes / unit for row in rows]}
    speeds: dict[str, list[float | None]] = {"bad": [row.speed for row in rows]}
    if theirs:
        peaks["muted"] = [run.peak_bytes / unit if run else None for run in theirs]
        speeds["muted"] = [run.samples_per_second if run else None for run in theirs]
    missing = [short_outcome(row) for row in rows]
    sides = [Side(f"peak memory, {name}", peaks, missing), Side("samples / second", speeds, missing)]
    legend = [("muted", f"the guides' figures ({THEIR_MACHINE})")] if theirs else []
    return bars_svg("\n".join(title(ladder)), [row.method.name for row in rows], sides, legend)
