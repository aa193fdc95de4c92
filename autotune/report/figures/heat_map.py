"""Heat maps of speed by micro-batch size and each setting, a panel a setting, with what ran out of memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import Value, word
from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import three_digits
from autotune.report.figures.canvas import ACCENT, BAD, GRID, INK, MUTED, SMALL, WIDTH, Drawing, new_figure
from autotune.report.figures.words import listed, speed_value
from autotune.study.result import SearchResult

MOST_PANELS, MOST_SIZES, MOST_VALUES = 12, 12, 8
"""Settings, and of each micro-batch sizes and values, for which there is room; those of the fastest trials come first."""

LABELS, CELL, HEAD, FOOT = 1.25, 0.27, 0.26, 0.3
"""Inches: the width of a row's label, the height of a cell, and what stands above and below the cells of a panel."""

CORNER = 0.08
"""Inches of the corner of a cell in which some, not all, ran out of memory."""

PALEST, DARKEST = 0.06, 0.6
"""Opacity of the colour of a cell that is hardly fast and of the fastest: what stands on it is read in light and dark."""

LETTERS = 17
"""Of a value's name."""

Place = tuple[Value, int]
Tried = tuple[float, Trial]
"""Samples / second, 0 where it does not fit, and the trial; the fastest first."""


@dataclass(frozen=True)
class _Panel:
    """One setting's cells. rows: its values; columns: micro-batch sizes; cells: (value, size) -> best speed, 0 where all ran
    out of memory, None where they ended otherwise. out_of_memory: places where any did."""

    setting: str
    rows: Sequence[Value]
    columns: Sequence[int]
    cells: Mapping[Place, float | None]
    out_of_memory: Collection[Place]


def draw(result: SearchResult) -> Drawing | None:
    """The best speed seen with each setting's value at each micro-batch size, and what ran out of memory.

    None where no setting took two values, or nothing did either.
    """
    tried = sorted(((speed_value(one), one) for one in result.trials), key=lambda pair: -pair[0])
    every = _settings(tried)
    panels = [_panel(name, tried) for name in every[:MOST_PANELS]]
    if not any(panel.out_of_memory or any(panel.cells.values()) for panel in panels):
        return None
    height = sum(HEAD + CELL * len(one.rows) + FOOT for one in panels) + 0.2
    figure = new_figure(height, layout=None)
    axes = figure.add_axes((0, 0, 1, 1))  # in inches from the top left corner
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    top = 0.0
    for panel in panels:
        _draw(axes, panel, top, tried[0][0])
        top += HEAD + CELL * len(panel.rows) + FOOT
    axes.text(WIDTH, top + 0.08, "columns: micro-batch size", fontsize=SMALL, color=MUTED, ha="right", va="center")
    return Drawing("speed-by-setting", "Speed by micro-batch size and setting", _caption(every), figure)


def _settings(tried: Sequence[Tried]) -> list[str]:
    """Settings of which more than one value was tried, those that part the fastest speeds most first."""
    best: dict[str, dict[Value, float]] = {}
    for speed, trial in tried:
        for name, value in trial.configuration.settings:
            known = best.setdefault(name, {})
            known[value] = max(known.get(value, 0.0), speed)
    spread = {name: max(known.values()) - min(known.values()) for name, known in best.items() if len(known) > 1}
    return sorted(spread, key=lambda name: -spread[name])


def _panel(setting: str, tried: Sequence[Tried]) -> _Panel:
    cells: dict[Place, float | None] = {}
    out_of_memory: set[Place] = set()
    rows: dict[Value, None] = {}
    columns: dict[int, None] = {}
    for speed, trial in tried:
        values = trial.configuration.values
        if setting not in values:
            continue
        place = (values[setting], trial.configuration.micro_batch_size)
        rows[place[0]] = columns[place[1]] = None
        lost = trial.final.outcome is Outcome.OUT_OF_MEMORY
        if place not in cells or (lost and cells[place] is None):
            cells[place] = speed or (0.0 if lost else None)
        out_of_memory |= {place} if lost else set()
    shown = list(rows)[:MOST_VALUES]
    return _Panel(setting, sorted(shown, key=_order), sorted(list(columns)[:MOST_SIZES]), cells, out_of_memory)


def _order(value: Value) -> tuple[bool, float, str]:
    """Numbers by size, then words by letters."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _draw(axes: Any, panel: _Panel, top: float, fastest: float) -> None:
    """The panel with its upper edge at top, inches; fastest: the speed of the darkest colour."""
    axes.text(0.02, top + HEAD - 0.08, panel.setting, fontweight="bold", va="baseline")
    wide = (WIDTH - LABELS - 0.04) / max(4, len(panel.columns))
    small = {"fontsize": SMALL if wide > 0.4 else 7, "ha": "center", "va": "center"}
    places = {
        (value, micro): (LABELS + wide * column, top + HEAD + CELL * row)
        for row, value in enumerate(panel.rows)
        for column, micro in enumerate(panel.columns)
    }
    _fill(axes, panel, places, wide, fastest)
    for place, (x, y) in places.items():
        if place in panel.cells:
            axes.text(x + wide / 2, y + CELL / 2, **_said(panel.cells[place]), **small)
    for value in panel.rows:
        label, (_, y) = word(value), places[value, panel.columns[0]]
        label = label if len(label) <= LETTERS else f"{label[: LETTERS - 1]}…"
        axes.text(LABELS - 0.06, y + CELL / 2, label, fontsize=SMALL, ha="right", va="center")
    for micro in panel.columns:
        x, y = places[panel.rows[-1], micro]
        axes.text(x + wide / 2, y + CELL + 0.11, str(micro), color=MUTED, **small)


def _fill(axes: Any, panel: _Panel, places: Mapping[Place, tuple[float, float]], wide: float, fastest: float) -> None:
    """The cells without their text. places: where the upper left corner of each is; wide: inches of a cell."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    cells = {at: [(x, y), (x + wide, y), (x + wide, y + CELL), (x, y + CELL)] for at, (x, y) in places.items()}
    speeds = {at: panel.cells.get(at) or 0.0 for at in cells}
    nothing = (0.0, 0.0, 0.0, 0.0)
    faces = [
        to_rgba(ACCENT, PALEST + (DARKEST - PALEST) * speed / fastest) if speed else nothing
        for speed in speeds.values()
    ]
    axes.add_collection(PolyCollection([*cells.values()], facecolors=faces, edgecolors=GRID, linewidths=0.8))
    if lost := [cell for at, cell in cells.items() if panel.cells.get(at) == 0]:
        hatched: dict[str, Any] = {
            "facecolors": "none",
            "edgecolors": BAD,
            "linewidths": 0.8,
            "hatch": "////",
            "alpha": 0.4,
        }
        axes.add_collection(PolyCollection(lost, **hatched))
    corners = [
        [(x + wide - CORNER, y), (x + wide, y), (x + wide, y + CORNER)]
        for at, (x, y) in places.items()
        if speeds[at] and at in panel.out_of_memory
    ]
    if corners:
        axes.add_collection(PolyCollection(corners, facecolors=BAD, edgecolors="none"))


def _said(speed: float | None) -> dict[str, Any]:
    """What stands in a cell, and how."""
    if speed is None:
        return {"s": "failed", "color": MUTED}
    return {"s": three_digits(speed), "color": INK} if speed else {"s": "OOM", "color": BAD, "fontweight": "bold"}


def _caption(every: Sequence[str]) -> str:
    said = "Each cell is the best samples / second of all trials with this value at this micro-batch size, whatever their other "
    said += "settings. OOM: none of them fits, and some ran out of memory; a red corner: some did, others fit; failed: they took "
    said += "more than is allowed or ended otherwise; empty: not tried."
    if left := every[MOST_PANELS:]:
        said += f" Not shown, as they part the speeds least: {listed(left)}."
    return said
