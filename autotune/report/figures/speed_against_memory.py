"""Speed against memory: every trial, the Pareto front, what did not fit, and what was allowed."""

from collections.abc import Sequence
from typing import Any

from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.report.figures.canvas import ACCENT, BAD, BASELINE, BEST, Drawing, legend_below, new_figure
from autotune.report.figures.words import NO_BASELINE, memory_unit, wanted_bytes
from autotune.study.objective import pareto_front
from autotune.study.result import SearchResult

MOST_INTERVALS = 40
"""Trials up to which each shows its interval."""


def draw(result: SearchResult) -> Drawing | None:
    """Samples / second over peak memory, one mark a trial; None where no trial has either.

    Trials that ran out of memory stand at speed 0, where what they held and what was refused lies together; above what
    was allowed. What wanted far more stands at the edge. A baseline among those that do not fit keeps its square.
    """
    able = [trial for trial in result.trials if trial.feasible and trial.samples_per_second and trial.peak_bytes]
    over = [trial for trial in result.trials if not trial.feasible and trial.samples_per_second and trial.peak_bytes]
    lost = [one for one in result.trials if one.final.outcome is Outcome.OUT_OF_MEMORY and wanted_bytes(one)]
    if not (able or over or lost):
        return None
    most = max([one.peak_bytes or 0 for one in (*able, *over)], default=0)
    near = bool(lost) or result.memory_limit_bytes < 2 * most
    edge = 1.25 * max(most, result.memory_limit_bytes if near else 0)
    name, unit = memory_unit([edge / 1.25])
    figure = new_figure()
    axes = figure.add_subplot()
    _trials(axes, result, able, unit)
    beyond = {one.number: ((one.peak_bytes or 0) / unit, float(one.samples_per_second or 0)) for one in over}
    crosses = {one.number: (min(wanted_bytes(one), edge) / unit, 0.0) for one in lost}
    own = None if result.baseline_trial is None else result.baseline_trial.number
    square = [places.pop(own) for places in (beyond, crosses) if own in places]
    if beyond:
        label = "ran, but not within what is allowed"
        axes.scatter(*zip(*beyond.values(), strict=True), 28, facecolors="none", edgecolors=BAD, label=label)
    if crosses:
        what = {"color": BAD, "clip_on": False, "linestyle": "none", "label": "out of memory (held + refused)"}
        axes.plot(*zip(*crosses.values(), strict=True), "x", markersize=6, markeredgewidth=1.5, zorder=5, **what)
    if square:
        axes.scatter(*square[-1], 55, BAD, marker="s", label=NO_BASELINE, clip_on=False, zorder=6)
    if near:
        for size, style, said in (
            (result.allowed_bytes, "--", "allowed"),
            (result.memory_limit_bytes, "-", "limit"),
        ):
            label = f"{said} {format_bytes(size)}"
            axes.axvline(size / unit, color=BAD, linestyle=style, linewidth=1.2, label=label, zorder=1)
        axes.axvspan(result.memory_limit_bytes / unit, 1.02 * edge / unit, color=BAD, alpha=0.08, linewidth=0)
    axes.set(xlabel=f"peak memory, {name}", ylabel="samples / second")
    axes.set_xlim(right=1.02 * edge / unit)
    axes.set_ylim(bottom=0)
    axes.grid()
    legend_below(figure, 2)
    return Drawing("speed-against-memory", "Speed against peak memory", _caption(result, near, bool(crosses)), figure)


def _trials(axes: Any, result: SearchResult, able: Sequence[Trial], unit: int) -> None:
    roles = [("best", result.best_trial, "*", 190, BEST), ("baseline", result.baseline_trial, "s", 55, BASELINE)]
    special = {one.number for _, one, *_ in roles if one is not None}
    others = [one for one in able if one.number not in special]
    if len(able) <= MOST_INTERVALS and able:
        lows = [one.samples_per_second.low for one in able if one.samples_per_second]
        highs = [min(one.samples_per_second.high, 2 * one.samples_per_second) for one in able if one.samples_per_second]
        axes.vlines([(one.peak_bytes or 0) / unit for one in able], lows, highs, ACCENT, alpha=0.45, linewidth=1.2)
    for early, label in ((False, "trials"), (True, "trials that ended early")):
        some = [one for one in others if one.measurement.ended_early is early]
        if some:
            how = {"alpha": 0.35} if early else {}
            axes.scatter([(one.peak_bytes or 0) / unit for one in some], _speeds(some), 24, ACCENT, label=label, **how)
    front = pareto_front(result.trials)[::-1]
    if len(front) > 1:
        memory = [(one.peak_bytes or 0) / unit for one in front]
        axes.step(
            memory, _speeds(front), where="post", color=ACCENT, linewidth=1.2, alpha=0.7, zorder=1, label="Pareto front"
        )
    for name, one, mark, size, colour in roles:
        if one is not None and one.number in {trial.number for trial in able}:
            axes.scatter(
                [(one.peak_bytes or 0) / unit], _speeds([one]), size, colour, marker=mark, label=name, zorder=4
            )


def _speeds(trials: Sequence[Trial]) -> list[float]:
    return [float(one.samples_per_second or 0) for one in trials]


def _caption(result: SearchResult, near: bool, lost: bool) -> str:
    said = "Higher is faster, further left is leaner. "
    if near:
        said += "Right of the dashed line is the headroom, right of the solid line is more than the limit. "
    else:
        sizes = f"{format_bytes(result.allowed_bytes)} of {format_bytes(result.memory_limit_bytes)}"
        said += f"Allowed are {sizes}, far right of the picture. "
    if lost:
        said += "A cross is a trial that ran out of memory, where what it held and what it was refused lie together; "
        said += "one at the right edge wanted more than the picture shows. "
    return said + "No trial beats one of the Pareto front in both speed and memory."
