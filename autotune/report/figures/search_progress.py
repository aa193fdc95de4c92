"""Progress of the search: each trial, the best so far, and the bound on what is untested."""

import math
from collections.abc import Sequence

from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, BAD, INK, MUTED, Drawing, legend_below, new_figure
from autotune.report.figures.rows import mark_special_trials, mark_unfit_baseline, memory_unit, special_trials
from autotune.study.objective import speed
from autotune.study.result import SearchResult

LABELS = {"samples_per_second": "samples / second", "tokens_per_second": "tokens / second"}

Point = tuple[int, float]


def draw(result: SearchResult) -> Drawing | None:
    """The objective over the trials' numbers, as the probes measured it; None where none fits."""
    objective, baseline = result.request.objective, result.baseline_trial
    unit_name, unit = memory_unit(trial.measurement.peak_bytes for trial in result.trials)
    is_memory = objective == "memory"
    values = {trial.number: _value(trial, objective, unit) for trial in result.trials}
    points = {number: (number, value) for number, value in values.items() if value}
    best = _best_so_far(result.trials, values, is_memory)
    if not best:
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    special = {trial.number for trial in special_trials(result)}
    if others := [point for number, point in points.items() if number not in special]:
        axes.scatter(*zip(*others, strict=True), 22, ACCENT, alpha=0.7, label="trial", zorder=3)
    unfit_baseline = baseline is not None and baseline.number not in points
    if lost := [number for number in values if number not in points and not (unfit_baseline and number == 0)]:
        axes.plot(lost, [0] * len(lost), "x", color=BAD, clip_on=False, markersize=5, label="does not fit, or failed")
    mark_special_trials(axes, result, points)
    if unfit_baseline:
        mark_unfit_baseline(axes, 0, 0)
    axes.step(*zip(*best, strict=True), where="post", color=INK, linewidth=1.5, label="best so far")
    likely, untested = _bounds(result, best, is_memory)
    for bound, style, what in ((likely, "-", "what is likely to fit"), (untested, "--", "any untested")):
        if bound:
            label = f"bound: {what}"
            axes.step(*zip(*bound, strict=True), where="post", color=MUTED, linestyle=style, linewidth=1.2, label=label)
    axes.set(xlabel="trial", ylabel=f"peak memory, {unit_name}" if is_memory else LABELS[objective])
    top, reach = max(values.values()), max([value for _, value in (*likely, *untested)], default=0.0)
    axes.set_ylim(0, min(max(1.08 * top, 1.05 * reach), 2 * top))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()
    legend_below(figure, 3)
    return Drawing("search-progress", "Progress of the search", _caption(result, bool(untested)), figure)


def _value(trial: Trial, objective: str, unit: int) -> float:
    """What the probe measured for the objective; 0 where it does not fit."""
    if not trial.measurement.feasible:
        return 0.0
    if objective == "memory":
        return (trial.measurement.peak_bytes or 0) / unit
    return float(speed(trial.measurement, objective) or 0.0)


def _best_so_far(trials: Sequence[Trial], values: dict[int, float], is_memory: bool) -> list[Point]:
    """After each trial from the first that fits on; a probe that ended early never counts."""
    points: list[Point] = []
    for trial in trials:
        value, before = values[trial.number], points[-1][1] if points else None
        if not value or trial.measurement.ended_early:
            value = before or 0.0
        elif before is not None:
            value = min(before, value) if is_memory else max(before, value)
        if value:
            points.append((trial.number, value))
    return points


def _bounds(result: SearchResult, best: Sequence[Point], is_memory: bool) -> tuple[list[Point], list[Point]]:
    """What those likely to fit, and any, could still reach after each trial of which that is known."""
    likely: list[Point] = []
    untested: list[Point] = []
    for number, value in best:
        if (gap := result.prospects.get(number)) is not None:
            for points, share in ((likely, gap.max_gain), (untested, gap.max_gain_if_fits)):
                if math.isfinite(share):
                    points.append((number, value * (1 - share if is_memory else 1 + share)))
    return likely, untested


def _caption(result: SearchResult, has_bounds: bool) -> str:
    side = "below" if result.request.objective == "memory" else "above"
    bounds = (
        f"With 95 % confidence nothing untested is {side} the bounds. The solid one is of what is likely to fit, the dashed "
        "one of all. Where they meet the best, the search ends. "
    )
    return (
        "Each trial as its probe measured it, before finalists were measured again. "
        f"{bounds if has_bounds else ''}It ended: {result.stop_reason}."
    )
