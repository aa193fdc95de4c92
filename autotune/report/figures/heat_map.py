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

LABELS, CELL, HEAD = 1.25, 0.27, 0.3
"""Inches: the width of a row's label, the height of a cell, and the space above a panel's cells."""

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
        """Of its cells with the line of micro-batch sizes, inches."""
        return CELL * (len(self.rows) + 1)


def draw(result: SearchResult) -> Drawing | None:
    """The best speed of each setting's value at each micro-batch size, and what ran out of memory.

    None where no setting took two values, or nothing did either.
    """
    trials = sorted(result.trials, key=lambda trial: -speed_value(trial))
    settings = _settings(trials)
    panels = [_panel(name, trials) for name in settings[:MOST_PANELS]]
    if not any(panel.out_of_memory or any(panel.cells.values()) for panel in panels):
        return None
    height = sum(HEAD + panel.height for panel in panels)
    figure, top = new_figure(height, layout=None), height
    for panel in panels:
        top -= HEAD + panel.height
        axes = figure.add_axes((0.01, top / height, 0.98, panel.height / height))
        _draw(axes, panel, speed_value(trials[0]))
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


def _draw(axes: Any, panel: _Panel, fastest: float) -> None:
    """The panel as a table; fastest: the speed of the darkest colour."""
    from matplotlib.colors import to_rgba
    from matplotlib.table import Table
    from matplotlib.transforms import Bbox

    axes.set_axis_off()
    axes.set_title(panel.setting, loc="left", fontsize="medium", fontweight="bold")
    table = Table(axes, bbox=Bbox.unit())
    table.auto_set_font_size(False)
    width = (WIDTH - LABELS) / max(4, len(panel.columns))

    def add(row: int, column: int, text: str, colour: str = INK, fill: Any = "none", edge: str = "none") -> None:
        size = LABELS if column == 0 else width
        cell = table.add_cell(row, column, size, CELL, text=text, facecolor=fill, edgecolor=edge, loc="center")
        cell.set_text_props(color=colour, fontsize=SMALL if width > 0.4 else 7)

    for row, value in enumerate(panel.rows):
        label = word(value)
        add(row, 0, label if len(label) <= LETTERS else f"{label[: LETTERS - 1]}…")
        for column, size in enumerate(panel.columns, 1):
            text, colour = _cell_text(panel, (value, size))
            speed = panel.cells.get((value, size))
            fill = to_rgba(ACCENT, PALEST + (DARKEST - PALEST) * speed / fastest) if speed else "none"
            add(row, column, text, colour, fill, BAD if speed == 0 else GRID)
    for column, size in enumerate(panel.columns, 1):
        add(len(panel.rows), column, str(size), MUTED)
    add(len(panel.rows), 0, "micro-batch size", MUTED)
    axes.add_table(table)


def _cell_text(panel: _Panel, place: Place) -> tuple[str, str]:
    """The text of a cell and its colour."""
    if place not in panel.cells:
        return "", INK
    speed = panel.cells[place]
    if not speed:
        return ("failed", MUTED) if speed is None else ("OOM", BAD)
    return f"{three_digits(speed)}{'*' if place in panel.out_of_memory else ''}", INK


def _caption(settings: Sequence[str]) -> str:
    text = (
        "Each cell is the best samples / second of all trials with this value at this micro-batch size, whatever their other "
        "settings. OOM: none of them fits, and some ran out of memory; *: some did, others fit; failed: they took more than "
        "is allowed or ended otherwise; empty: not tried."
    )
    if others := settings[MOST_PANELS:]:
        text += f" Not shown, as they change the speed least: {listed(others)}."
    return text
