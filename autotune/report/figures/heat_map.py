"""Heat maps of speed by micro-batch size and each setting, a panel a setting, with what ran out of memory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core import Outcome, Trial, Value
from autotune.core.configuration import word
from autotune.core.units import three_digits
from autotune.report.figures.canvas import ACCENT, BAD, GRID, INK, MUTED, SMALL, WIDTH, Drawing, new_figure
from autotune.report.figures.rows import listed, speed_value
from autotune.study.result import SearchResult

MOST_PANELS, MOST_SIZES, MOST_VALUES = 12, 12, 8
"""Settings, and of each micro-batch sizes and values, for which there is room; those of the fastest trials come first."""

LABELS, CELL, HEAD, FOOT = 1.25, 0.27, 0.26, 0.3
"""Inches: the width of a row's label, the height of a cell, and the space above and below the cells of a panel."""

CORNER = 0.08
"""Inches of the corner of a cell in which some, not all, ran out of memory."""

PALEST, DARKEST = 0.06, 0.6
"""Opacity of the colour of the slowest cells and of the fastest: text on it is readable in light and dark."""

LETTERS = 17
"""Of a value's name."""

Place = tuple[Value, int]


@dataclass(frozen=True)
class _Panel:
    """One setting's cells."""

    setting: str
    rows: Sequence[Value]  # its values
    columns: Sequence[int]  # micro-batch sizes
    cells: Mapping[Place, float | None]  # best speed; 0 where all ran out of memory, None where they ended otherwise
    out_of_memory: Collection[Place]  # where any did

    @property
    def height(self) -> float:
        return HEAD + CELL * len(self.rows) + FOOT


def draw(result: SearchResult) -> Drawing | None:
    """The best speed of each setting's value at each micro-batch size, and what ran out of memory.

    None where no setting took two values, or nothing did either.
    """
    trials = sorted(result.trials, key=lambda trial: -speed_value(trial))
    settings = _settings(trials)
    panels = [_panel(name, trials) for name in settings[:MOST_PANELS]]
    if not any(panel.out_of_memory or any(panel.cells.values()) for panel in panels):
        return None
    height = sum(panel.height for panel in panels) + 0.2
    figure = new_figure(height, layout=None)
    axes = figure.add_axes((0, 0, 1, 1))  # in inches from the top left corner
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    top = 0.0
    for panel in panels:
        _draw(axes, panel, top, speed_value(trials[0]))
        top += panel.height
    axes.text(WIDTH, top + 0.08, "columns: micro-batch size", fontsize=SMALL, color=MUTED, ha="right", va="center")
    return Drawing("speed-by-setting", "Speed by micro-batch size and setting", _caption(settings), figure)


def _settings(trials: Sequence[Trial]) -> list[str]:
    """Settings with more than one value, those that separate the fastest speeds most first."""
    best: dict[str, dict[Value, float]] = {}
    for trial in trials:
        for name, value in trial.configuration.settings:
            speeds = best.setdefault(name, {})
            speeds[value] = max(speeds.get(value, 0.0), speed_value(trial))
    spread = {name: max(speeds.values()) - min(speeds.values()) for name, speeds in best.items() if len(speeds) > 1}
    return sorted(spread, key=lambda name: -spread[name])


def _panel(setting: str, trials: Sequence[Trial]) -> _Panel:
    """trials: the fastest first."""
    cells: dict[Place, float | None] = {}
    out_of_memory: set[Place] = set()
    for trial in trials:
        if setting in trial.configuration.values:
            place = (trial.configuration.values[setting], trial.configuration.micro_batch_size)
            is_lost = trial.final.outcome is Outcome.OUT_OF_MEMORY
            if place not in cells or (is_lost and cells[place] is None):
                cells[place] = speed_value(trial) or (0.0 if is_lost else None)
            out_of_memory |= {place} if is_lost else set()
    rows = list(dict.fromkeys(value for value, _ in cells))[:MOST_VALUES]
    columns = list(dict.fromkeys(size for _, size in cells))[:MOST_SIZES]
    return _Panel(setting, sorted(rows, key=_order), sorted(columns), cells, out_of_memory)


def _order(value: Value) -> tuple[bool, float, str]:
    """Numbers by size, then words by letters."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _draw(axes: Any, panel: _Panel, top: float, fastest: float) -> None:
    """The panel with its upper edge at top, inches; fastest: the speed of the darkest colour."""
    axes.text(0.02, top + HEAD - 0.08, panel.setting, fontweight="bold", va="baseline")
    width = (WIDTH - LABELS - 0.04) / max(4, len(panel.columns))
    style = {"fontsize": SMALL if width > 0.4 else 7, "ha": "center", "va": "center"}
    places = {
        (value, size): (LABELS + width * column, top + HEAD + CELL * row)
        for row, value in enumerate(panel.rows)
        for column, size in enumerate(panel.columns)
    }
    _fill(axes, panel, places, width, fastest)
    for place, (x, y) in places.items():
        if place in panel.cells:
            axes.text(x + width / 2, y + CELL / 2, **_cell_text(panel.cells[place]), **style)
    for value in panel.rows:
        label, (_, y) = word(value), places[value, panel.columns[0]]
        label = label if len(label) <= LETTERS else f"{label[: LETTERS - 1]}…"
        axes.text(LABELS - 0.06, y + CELL / 2, label, fontsize=SMALL, ha="right", va="center")
    for size in panel.columns:
        x, y = places[panel.rows[-1], size]
        axes.text(x + width / 2, y + CELL + 0.11, str(size), color=MUTED, **style)


def _fill(axes: Any, panel: _Panel, places: Mapping[Place, tuple[float, float]], width: float, fastest: float) -> None:
    """The cells without their text. places: where the upper left corner of each is; width: inches of a cell."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    def collect(polygons: list[list[tuple[float, float]]], **style: Any) -> None:
        if polygons:
            axes.add_collection(PolyCollection(polygons, **style))

    cells = {at: [(x, y), (x + width, y), (x + width, y + CELL), (x, y + CELL)] for at, (x, y) in places.items()}
    speeds = {at: panel.cells.get(at) or 0.0 for at in cells}
    opacities = [PALEST + (DARKEST - PALEST) * speed / fastest if speed else 0.0 for speed in speeds.values()]
    faces = [to_rgba(ACCENT, opacity) if opacity else (0.0, 0.0, 0.0, 0.0) for opacity in opacities]
    collect([*cells.values()], facecolors=faces, edgecolors=GRID, linewidths=0.8)
    lost = [cell for at, cell in cells.items() if panel.cells.get(at) == 0]
    collect(lost, facecolors="none", edgecolors=BAD, linewidths=0.8, hatch="////", alpha=0.4)
    corners = [
        [(x + width - CORNER, y), (x + width, y), (x + width, y + CORNER)]
        for at, (x, y) in places.items()
        if speeds[at] and at in panel.out_of_memory
    ]
    collect(corners, facecolors=BAD, edgecolors="none")


def _cell_text(speed: float | None) -> dict[str, Any]:
    """The text of a cell and its style."""
    if speed is None:
        return {"s": "failed", "color": MUTED}
    return {"s": three_digits(speed), "color": INK} if speed else {"s": "OOM", "color": BAD, "fontweight": "bold"}


def _caption(settings: Sequence[str]) -> str:
    text = (
        "Each cell is the best samples / second of all trials with this value at this micro-batch size, whatever their other "
        "settings. OOM: none of them fits, and some ran out of memory; a red corner: some did, others fit; failed: they took "
        "more than is allowed or ended otherwise; empty: not tried."
    )
    if others := settings[MOST_PANELS:]:
        text += f" Not shown, as they change the speed least: {listed(others)}."
    return text
