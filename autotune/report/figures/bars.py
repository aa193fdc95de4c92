"""Bars of memory and speed by configuration, side by side, as the guides draw them."""

from collections.abc import Sequence
from typing import Any

from autotune.core import Outcome, Trial
from autotune.core.units import three_digits
from autotune.report.figures.canvas import BAD, INK, SMALL, WIDTH, Drawing, new_figure
from autotune.report.figures.rows import (
    BAR,
    MARGIN,
    Row,
    axes_of,
    colour_of,
    memory_unit,
    named_trials,
    requested_bytes,
    rows_of,
    special_trials,
    speed_value,
    trial_name,
    write_names,
)
from autotune.study.result import SearchResult

FOOT = 0.3
"""Inches below the rows, for the names of the two sides."""


def draw(result: SearchResult) -> Drawing | None:
    """Peak memory at the left and samples / second at the right of the trials that are named; None without either.

    A trial that ran out of memory shows what it requested, hatched; one that ended in another way says how.
    """
    trials = named_trials(result)
    if not any(speed_value(trial) or _memory(trial) for trial in trials):
        return None
    name, unit = memory_unit(map(_memory, trials))
    rows = rows_of([trial_name(result, trial) for trial in trials])
    figure = new_figure(rows[-1].bottom + FOOT, layout=None)
    memory, speed = (axes_of(figure, rows, MARGIN + left, WIDTH / 2 - MARGIN) for left in (0, WIDTH / 2))
    bold = {trial.number for trial in special_trials(result)}
    write_names(memory, rows, [trial.number in bold for trial in trials])
    for axes, values, label in (
        (memory, [_memory(trial) / unit for trial in trials], f"peak memory, {name}"),
        (speed, [speed_value(trial) for trial in trials], "samples / second"),
    ):
        _draw_bars(axes, result, rows, trials, values)
        axes.set(xlim=(0, 1.3 * max([*values, 1e-12])), xticks=[], xlabel=label)
        axes.spines["bottom"].set_visible(False)
    for row, trial in zip(rows, trials, strict=True):
        _draw_interval(speed, row, trial)
    return Drawing("memory-and-speed", "Memory and speed by configuration", _caption(result, trials), figure)


def _draw_bars(
    axes: Any, result: SearchResult, rows: Sequence[Row], trials: Sequence[Trial], values: Sequence[float]
) -> None:
    for row, trial, value in zip(rows, trials, values, strict=True):
        if value:
            style = {"color": colour_of(result, trial)}
            if _is_lost(trial):
                style = {"facecolor": "none", "edgecolor": BAD, "hatch": "////"}
            axes.barh(row.middle, value, BAR, linewidth=0.8, **style)
            text, place = f"{'> ' if _is_lost(trial) else ''}{three_digits(value)}", (value, row.middle)
            axes.annotate(text, place, (4, 0), textcoords="offset points", va="center", fontsize=SMALL)


def _draw_interval(axes: Any, row: Row, trial: Trial) -> None:
    """The speed's interval as a thin line below its bar; without a speed, why there is none."""
    speed = trial.samples_per_second
    if speed_value(trial) and speed is not None:
        ends = (max(0.0, speed.low), min(speed.high, 1.2 * speed))
        axes.hlines(row.middle + BAR / 2 + 0.02, *ends, INK, linewidth=1.2, alpha=0.6)
    else:
        is_complete = trial.final.outcome is Outcome.COMPLETED
        reason = "more than allowed" if is_complete else trial.final.outcome.value.replace("_", " ")
        axes.text(0, row.middle, reason, fontsize=SMALL, va="center", color=BAD)


def _is_lost(trial: Trial) -> bool:
    return trial.final.outcome is Outcome.OUT_OF_MEMORY


def _memory(trial: Trial) -> int:
    return (requested_bytes(trial) if _is_lost(trial) else 0) or trial.peak_bytes or 0


def _caption(result: SearchResult, trials: Sequence[Trial]) -> str:
    text = "Each trial by its number, its micro-batch size x accumulation steps, and what differs from the baseline. "
    if len(trials) < len(result.trials):
        which = "baseline, best, Pareto front and the fastest others"
        text = f"{len(trials)} of {len(result.trials)} trials: {which}. {text}"
    if any(map(_is_lost, trials)):
        text += "Hatched is what a trial held and was refused when it ran out of memory. "
    return text + "The thin line below a speed is its 95 % interval, cut off where it is very wide."
