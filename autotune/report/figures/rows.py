"""Trials in figures: which are named and how, their colours, marks and units, and rows of bars."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, BAD, BASELINE, BEST, INK, PARTS, SMALL, WIDTH, new_figure
from autotune.report.trial_text import difference, is_same, role_text
from autotune.study.objective import pareto_front
from autotune.study.result import SearchResult

MOST_NAMED = 10
"""Trials that a figure names, of however many: best, baseline, the Pareto front and the fastest others."""

NO_BASELINE = "baseline: does not fit"
"""Legend of a baseline without a speed to compare with."""

LETTERS, LINES = 66, 3
"""Characters of a line across the whole figure, and lines of a name at most."""

LINE, BAR, GAP = 0.145, 0.19, 0.1
"""Inches of a line of text, of a bar, and between a bar and the next name."""

AXIS, LEGEND = 0.45, 0.17
"""Inches of the axis with its label below the rows, and of a line of the legend."""

MARGIN = 0.1
"""Inches left of the bars."""

LETTER = 0.018
"""Width of a character behind a bar, as a share of the axis."""


# Trials ---------------------------------------------------------------------------------------------------------------


def trial_name(result: SearchResult, trial: Trial) -> str:
    """`5 (best): 16 x 3, precision bf16`: a trial by what differs from the baseline."""
    return f"{trial.number}{role_text(trial, result)}: {difference(trial, result)}"


def colour_of(result: SearchResult, trial: Trial) -> str:
    """The best's colour, the baseline's, or that of all others."""
    return BEST if is_same(trial, result.best_trial) else BASELINE if is_same(trial, result.baseline_trial) else ACCENT


def special_trials(result: SearchResult) -> list[Trial]:
    """Baseline and best, as far as there are any, each once."""
    trials = [trial for trial in (result.baseline_trial, result.best_trial) if trial is not None]
    return trials[:1] if len(trials) == 2 and is_same(*trials) else trials


def named_trials(result: SearchResult) -> list[Trial]:
    """The trials that a figure has room to name, fastest first, then those without a speed in their order."""
    trials = sorted(result.trials, key=lambda trial: -speed_value(trial))
    if len(trials) > MOST_NAMED:
        first = [*special_trials(result), *pareto_front(trials), *filter(speed_value, trials)]
        numbers = list(dict.fromkeys(trial.number for trial in first))[:MOST_NAMED]
        trials = [trial for trial in trials if trial.number in numbers]
    return trials


def mark_special_trials(axes: Any, result: SearchResult, points: Mapping[int, tuple[float, float]]) -> None:
    """Baseline as a square and best as a star. points: trial number -> its place."""
    marks = (("baseline", result.baseline_trial, "s", 55, BASELINE), ("best", result.best_trial, "*", 190, BEST))
    for label, trial, marker, size, colour in marks:
        if trial is not None and trial.number in points:
            axes.scatter(*points[trial.number], size, colour, marker=marker, label=label, zorder=4)


def mark_unfit_baseline(axes: Any, x: float, y: float) -> None:
    """A baseline that does not fit as a red square."""
    axes.scatter(x, y, 55, BAD, marker="s", label=NO_BASELINE, clip_on=False, zorder=6)


# Numbers --------------------------------------------------------------------------------------------------------------


def speed_value(trial: Trial) -> float:
    """Samples / second of a trial that fits, else 0."""
    return float((trial.samples_per_second if trial.feasible else None) or 0.0)


def requested_bytes(trial: Trial) -> int:
    """What a trial that ran out of memory held and was refused, bytes; 0 where neither is known."""
    return (trial.final.held_bytes or 0) + (trial.final.refused_bytes or 0)


def memory_unit(sizes: Iterable[float | None]) -> tuple[str, int]:
    """The name and bytes of the unit for the largest of these sizes."""
    return ("GiB", 2**30) if max((size or 0 for size in sizes), default=0) >= 2**30 else ("MiB", 2**20)


def listed(names: Iterable[Any]) -> str:
    """`a, b and c`."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row: a trial's name with its bar below."""

    lines: Sequence[str]  # of the name
    top: float  # inches from the top of the rows

    @property
    def middle(self) -> float:
        """Of its bar, inches from the top of the rows."""
        return self.top + LINE * len(self.lines) + 0.03 + BAR / 2

    @property
    def bottom(self) -> float:
        return self.middle + BAR / 2 + GAP


def rows_of(names: Sequence[str], letters: int = LETTERS) -> list[Row]:
    """A row for each name, one below the other."""
    rows: list[Row] = []
    for name in names:
        lines = textwrap.wrap(name, letters, max_lines=LINES, placeholder=" …", subsequent_indent="   ")
        rows.append(Row(lines, rows[-1].bottom if rows else 0.0))
    return rows


def write_names(axes: Any, rows: Sequence[Row], bold: Sequence[bool]) -> None:
    """The names above their bars, from the left edge of these axes on."""
    for row, is_bold in zip(rows, bold, strict=True):
        for place, line in enumerate(row.lines):
            weight = "bold" if is_bold else "normal"
            y = row.top + LINE * (place + 0.55)
            axes.text(0, y, line, fontsize=SMALL, va="center", fontweight=weight, clip_on=False)


def axes_of(figure: Any, rows: Sequence[Row], left: float, width: float) -> Any:
    """Axes for these rows at the top of the figure, measured in inches from there down. left, width: inches."""
    height, depth = figure.get_figheight(), rows[-1].bottom
    axes = figure.add_axes((left / WIDTH, 1 - depth / height, width / WIDTH, depth / height))
    axes.set(ylim=(depth, 0), yticks=[])
    axes.spines["left"].set_visible(False)
    return axes


def stacked(
    names: Sequence[str],
    parts: Sequence[Mapping[str, float]],
    label: str,
    ends: Sequence[str],
    marks: Sequence[float] = (),
) -> Any:
    """A figure with a bar for each name.

    parts: of each bar, name -> length, all in the same order. ends: text behind each bar. marks: of each bar, a length to
    mark as the measured peak, 0 for none. label: of the axis, with its unit.
    """
    rows = rows_of(names)
    shown = [name for name in parts[0] if any(lengths[name] for lengths in parts)]
    legend = -(-(len(shown) + any(marks)) // 3) * LEGEND + 0.1
    figure = new_figure(rows[-1].bottom + AXIS + legend, layout=None)
    axes = axes_of(figure, rows, MARGIN, WIDTH - 3 * MARGIN)
    write_names(axes, rows, [False] * len(rows))
    middles = [row.middle for row in rows]
    left = [0.0] * len(rows)
    for part, colour in zip(shown, PARTS, strict=False):
        lengths = [bar[part] for bar in parts]
        axes.barh(middles, lengths, BAR, left, color=colour, label=part)
        left = [before + length for before, length in zip(left, lengths, strict=True)]
    most = max([*left, *marks, 1e-12]) * (1 + LETTER * max(map(len, ends)))
    for row, (length, end) in enumerate(zip(left, ends, strict=True)):
        mark = marks[row] if marks else 0.0
        is_in_the_way = length < mark < length + LETTER * (len(end) + 1) * most
        place = (mark if is_in_the_way else length, middles[row])
        axes.annotate(end, place, (5, 0), textcoords="offset points", va="center", fontsize=SMALL)
    if any(marks):
        lines = [(mark, y - 0.13, y + 0.13) for mark, y in zip(marks, middles, strict=True) if mark]
        axes.vlines(*zip(*lines, strict=True), color=INK, linewidth=2, label="measured peak")
    axes.set(xlim=(0, most), xlabel=label)
    figure.legend(loc="lower center", ncols=3, handlelength=1.6, columnspacing=1.2, borderaxespad=0.1)
    return figure
