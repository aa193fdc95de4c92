"""Bars of memory and speed by configuration, side by side, as the guides draw them."""

from collections.abc import Sequence
from typing import Any

from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import three_digits
from autotune.report.figures.canvas import BAD, INK, SMALL, WIDTH, Drawing, new_figure
from autotune.report.figures.rows import BAR, MARGIN, Row, axes_of, rows_of, write_names
from autotune.report.figures.words import colour_of, memory_unit, named, speed_value, told, wanted_bytes
from autotune.study.result import SearchResult

FOOT = 0.3
"""Inches below the rows, for the names of the two sides."""


def draw(result: SearchResult) -> Drawing | None:
    """Peak memory at the left and samples / second at the right of the trials that are named; None without either.

    A trial that ran out of memory shows what it wanted, hatched; one that ended in another way says how.
    """
    trials = named(result)
    if not any(speed_value(one) or _memory(one) for one in trials):
        return None
    name, unit = memory_unit(map(_memory, trials))
    rows = rows_of([told(result, one) for one in trials])
    figure = new_figure(rows[-1].bottom + FOOT, layout=None)
    half = WIDTH / 2 - MARGIN
    marked = {one.number for one in (result.best_trial, result.baseline_trial) if one is not None}
    sides = [
        (axes_of(figure, rows, MARGIN, half), [_memory(one) / unit for one in trials], f"peak memory, {name}"),
        (axes_of(figure, rows, MARGIN + WIDTH / 2, half), [speed_value(one) for one in trials], "samples / second"),
    ]
    write_names(sides[0][0], rows, [one.number in marked for one in trials])
    colours = [colour_of(result, one) for one in trials]
    for axes, values, label in sides:
        _bars(axes, rows, trials, values, colours)
        axes.set(xlim=(0, 1.3 * max([*values, 1e-12])), xticks=[], xlabel=label)
        axes.spines["bottom"].set_visible(False)
    for row, trial in zip(rows, trials, strict=True):
        _speed_said(sides[1][0], row, trial)
    return Drawing("memory-and-speed", "Memory and speed by configuration", _caption(result, trials), figure)


def _bars(
    axes: Any, rows: Sequence[Row], trials: Sequence[Trial], values: Sequence[float], colours: Sequence[str]
) -> None:
    for row, trial, value, colour in zip(rows, trials, values, colours, strict=True):
        if value:
            lost = trial.final.outcome is Outcome.OUT_OF_MEMORY
            how = {"facecolor": "none", "edgecolor": BAD, "hatch": "////"} if lost else {"color": colour}
            axes.barh(row.middle, value, BAR, linewidth=0.8, **how)
            text, place = f"{'> ' if lost else ''}{three_digits(value)}", (value, row.middle)
            axes.annotate(text, place, (4, 0), textcoords="offset points", va="center", fontsize=SMALL)


def _speed_said(axes: Any, row: Row, trial: Trial) -> None:
    """The speed's interval as a thin line below its bar; for want of a speed, why there is none."""
    speed = trial.samples_per_second
    if speed_value(trial) and speed is not None:
        ends = (max(0.0, speed.low), min(speed.high, 1.2 * speed))
        axes.hlines(row.middle + BAR / 2 + 0.02, *ends, INK, linewidth=1.2, alpha=0.6)
    else:
        ran = trial.final.outcome is Outcome.COMPLETED
        why = "more than allowed" if ran else trial.final.outcome.value.replace("_", " ")
        axes.text(0, row.middle, why, fontsize=SMALL, va="center", color=BAD)


def _memory(trial: Trial) -> int:
    lost = trial.final.outcome is Outcome.OUT_OF_MEMORY
    return (wanted_bytes(trial) if lost else 0) or trial.peak_bytes or 0


def _caption(result: SearchResult, trials: Sequence[Trial]) -> str:
    said = "Each trial by its number, its micro-batch size x accumulation steps, and what differs from the baseline. "
    if len(trials) < len(result.trials):
        said = (
            f"{len(trials)} of {len(result.trials)} trials: baseline, best, Pareto front and the fastest others. {said}"
        )
    if any(one.final.outcome is Outcome.OUT_OF_MEMORY for one in trials):
        said += "Hatched is what a trial held and was refused when it ran out of memory. "
    return said + "The thin line below a speed is its 95 % interval, cut off where it is very wide."
