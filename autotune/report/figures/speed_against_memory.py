"""Speed against memory: every trial, the Pareto front, what did not fit, and what was allowed."""

from collections.abc import Sequence
from typing import Any

from autotune.core import Outcome, Trial
from autotune.core.units import format_bytes
from autotune.report.figures.canvas import ACCENT, BAD, Drawing, legend_below, new_figure
from autotune.report.figures.rows import (
    mark_special_trials,
    mark_unfit_baseline,
    memory_unit,
    requested_bytes,
    special_trials,
)
from autotune.study.objective import pareto_front
from autotune.study.result import SearchResult

MOST_INTERVALS = 40
"""Trials up to which each shows its interval."""


def draw(result: SearchResult) -> Drawing | None:
    """Samples / second over peak memory, one mark a trial; None where no trial has either.

    Trials that ran out of memory are at speed 0, at the sum of what they held and were refused, or at the edge where that
    is far more. A baseline among those that do not fit keeps its square.
    """
    measured = [trial for trial in result.trials if trial.samples_per_second and trial.peak_bytes]
    fits = [trial for trial in measured if trial.feasible]
    lost = [trial for trial in result.trials if trial.final.outcome is Outcome.OUT_OF_MEMORY and requested_bytes(trial)]
    if not measured and not lost:
        return None
    most = max([trial.peak_bytes or 0 for trial in measured], default=0)
    is_near = bool(lost) or result.memory_limit_bytes < 2 * most
    edge = 1.25 * max(most, result.memory_limit_bytes if is_near else 0)
    name, unit = memory_unit([edge / 1.25])
    figure = new_figure()
    axes = figure.add_subplot()
    points = {
        trial.number: ((trial.peak_bytes or 0) / unit, float(trial.samples_per_second or 0)) for trial in measured
    }
    _draw_fitting(axes, result, fits, {trial.number: points[trial.number] for trial in fits})
    beyond = {trial.number: points[trial.number] for trial in measured if not trial.feasible}
    crosses = {trial.number: (min(requested_bytes(trial), edge) / unit, 0.0) for trial in lost}
    baseline = -1 if result.baseline_trial is None else result.baseline_trial.number
    unfit_baseline = beyond.pop(baseline, None) or crosses.pop(baseline, None)
    if beyond:
        label = "ran, but not within what is allowed"
        axes.scatter(*zip(*beyond.values(), strict=True), 28, facecolors="none", edgecolors=BAD, label=label)
    if crosses:
        label = "out of memory (held + refused)"
        style = {"color": BAD, "clip_on": False, "linestyle": "none", "markersize": 6, "markeredgewidth": 1.5}
        axes.plot(*zip(*crosses.values(), strict=True), "x", zorder=5, label=label, **style)
    if unfit_baseline:
        mark_unfit_baseline(axes, *unfit_baseline)
    if is_near:
        for size, line, what in ((result.allowed_bytes, "--", "allowed"), (result.memory_limit_bytes, "-", "limit")):
            label = f"{what} {format_bytes(size)}"
            axes.axvline(size / unit, color=BAD, linestyle=line, linewidth=1.2, label=label, zorder=1)
        axes.axvspan(result.memory_limit_bytes / unit, 1.02 * edge / unit, color=BAD, alpha=0.08, linewidth=0)
    axes.set(xlabel=f"peak memory, {name}", ylabel="samples / second")
    axes.set_xlim(right=1.02 * edge / unit)
    axes.set_ylim(bottom=0)
    axes.grid()
    legend_below(figure, 2)
    caption = _caption(result, is_near, bool(crosses))
    return Drawing("speed-against-memory", "Speed against peak memory", caption, figure)


def _draw_fitting(
    axes: Any, result: SearchResult, trials: Sequence[Trial], points: dict[int, tuple[float, float]]
) -> None:
    """The trials that fit with their intervals, and the Pareto front. points: trial number -> its place."""
    if trials and len(trials) <= MOST_INTERVALS:
        speeds = [trial.samples_per_second for trial in trials if trial.samples_per_second]
        lows, highs = [speed.low for speed in speeds], [min(speed.high, 2 * speed) for speed in speeds]
        axes.vlines([x for x, _ in points.values()], lows, highs, ACCENT, alpha=0.45, linewidth=1.2)
    special = {trial.number for trial in special_trials(result)}
    for is_early, label, alpha in ((False, "trials", None), (True, "trials that ended early", 0.35)):
        shown = [
            points[trial.number]
            for trial in trials
            if trial.number not in special and trial.measurement.ended_early is is_early
        ]
        if shown:
            axes.scatter(*zip(*shown, strict=True), 24, ACCENT, label=label, alpha=alpha)
    front = [points[trial.number] for trial in pareto_front(result.trials)[::-1] if trial.number in points]
    if len(front) > 1:
        style = {"where": "post", "color": ACCENT, "linewidth": 1.2, "alpha": 0.7, "zorder": 1}
        axes.step(*zip(*front, strict=True), label="Pareto front", **style)
    mark_special_trials(axes, result, points)


def _caption(result: SearchResult, is_near: bool, has_crosses: bool) -> str:
    sizes = f"{format_bytes(result.allowed_bytes)} of {format_bytes(result.memory_limit_bytes)}"
    limit = "Right of the dashed line is the headroom, right of the solid line is more than the limit. "
    crosses = (
        "A cross is a trial that ran out of memory, at the sum of what it held and what it was refused; one at the right edge "
        "requested more than the picture shows. "
    )
    return (
        "Higher is faster, further left is leaner. "
        f"{limit if is_near else f'Allowed are {sizes}, far right of the picture. '}{crosses if has_crosses else ''}"
        "No trial beats one of the Pareto front in both speed and memory."
    )
