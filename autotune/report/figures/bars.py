"""Bars of memory and speed by configuration, side by side, as the guides draw them."""

from collections.abc import Sequence
from typing import Any

from autotune.measurement import Outcome
from autotune.report.facts import Facts
from autotune.report.figures.canvas import BAD, INK, SMALL, Drawing, new_figure
from autotune.report.figures.words import colour_of, memory_unit, named, number, speed_value, told, wanted_bytes
from autotune.trial import Trial

ROW = 0.42
"""Inches of a trial: its name and below it two bars."""


def draw(facts: Facts) -> Drawing | None:
    """Peak memory at the left and samples / second at the right of the trials that are named; None without trials.

    A trial that ran out of memory shows what it wanted, hatched; one that ended in another way says how.
    """
    rows = named(facts)
    if not any(speed_value(one) or _memory(one) for one in rows):
        return None
    name, unit = memory_unit(map(_memory, rows))
    height = ROW * len(rows) + 0.62
    figure = new_figure(height, layout=None)
    bottom, top = 0.45 / height, 1 - 0.05 / height
    memory = figure.add_axes((0.02, bottom, 0.45, top - bottom))
    speed = figure.add_axes((0.52, bottom, 0.45, top - bottom))
    for row, trial in enumerate(rows):
        weight = "bold" if trial.number in _marked(facts) else "normal"
        memory.text(0, row - 0.32, told(facts, trial), fontsize=SMALL, va="center", fontweight=weight, clip_on=False)
    colours = [colour_of(facts, one) for one in rows]
    _side(memory, [_memory(one) / unit for one in rows], colours, rows)
    _side(speed, [speed_value(one) for one in rows], colours, rows)
    _intervals(speed, rows)
    for row, trial in enumerate(rows):
        if not speed_value(trial):
            speed.text(0, row + 0.15, _ending(trial), fontsize=SMALL, va="center", color=BAD)
    for axes, label in ((memory, f"peak memory, {name}"), (speed, "samples / second")):
        axes.set(ylim=(len(rows) - 0.5, -0.6), yticks=[], xticks=[])
        axes.set_xlim(0, 1.3 * (axes.get_xlim()[1] / 1.05 or 1))
        axes.set_xlabel(label)
        axes.spines["bottom"].set_visible(False)
    return Drawing("memory-and-speed", "Memory and speed by configuration", _caption(facts, rows), figure)


def _side(axes: Any, values: Sequence[float], colours: Sequence[str], trials: Sequence[Trial]) -> None:
    for row, (value, colour, trial) in enumerate(zip(values, colours, trials, strict=True)):
        lost = trial.final.outcome is Outcome.OUT_OF_MEMORY
        how = {"facecolor": "none", "edgecolor": BAD, "hatch": "////"} if lost else {"color": colour}
        if value:
            axes.barh(row + 0.15, value, 0.42, linewidth=0.8, **how)
            sign = "> " if lost else ""
            axes.annotate(
                f"{sign}{number(value)}",
                (value, row + 0.15),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )


def _intervals(axes: Any, trials: Sequence[Trial]) -> None:
    for row, trial in enumerate(trials):
        speed = trial.samples_per_second
        if speed_value(trial) and speed is not None:
            axes.hlines(row + 0.41, max(0.0, speed.low), min(speed.high, 1.2 * speed), INK, linewidth=1.2, alpha=0.6)


def _memory(trial: Trial) -> float:
    return trial.peak_bytes or wanted_bytes(trial) or 0.0


def _marked(facts: Facts) -> set[int]:
    return {one.number for one in (facts.best, facts.baseline) if one is not None}


def _ending(trial: Trial) -> str:
    if trial.final.outcome is Outcome.COMPLETED:
        return "more than allowed"
    return trial.final.outcome.value.replace("_", " ")


def _caption(facts: Facts, rows: Sequence[Trial]) -> str:
    said = "Each trial by its number, its micro-batch size x accumulation steps, and what differs from the baseline. "
    if len(rows) < len(facts.trials):
        said = f"{len(rows)} of {len(facts.trials)} trials: baseline, best, the Pareto front and the fastest others. {said}"
    if any(one.final.outcome is Outcome.OUT_OF_MEMORY for one in rows):
        said += "Hatched is what a trial held and was refused when it ran out of memory. "
    return said + "The thin line below a speed is its 95 % interval, cut off where it is very wide."
