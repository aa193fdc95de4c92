"""The search as it went: each trial, the best so far, and what the untried could still win."""

import math
from collections.abc import Sequence

from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, BAD, BASELINE, BEST, INK, MUTED, Drawing, legend_below, new_figure
from autotune.report.figures.words import NO_BASELINE, memory_unit
from autotune.study.objective import speed
from autotune.study.result import SearchResult

LABELS = {"samples_per_second": "samples / second", "tokens_per_second": "tokens / second"}

Point = tuple[int, float]


def draw(result: SearchResult) -> Drawing | None:
    """The objective over the trials' numbers, as the probes measured it; None where none fits."""
    unit_name, unit = memory_unit(one.measurement.peak_bytes for one in result.trials)
    of_memory = result.request.objective == "memory"
    points = [(one.number, _value(one, result.request.objective, unit)) for one in result.trials]
    known = [(number, value) for number, value in points if value]
    best = _best_so_far(result.trials, points, of_memory)
    if not best:
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    numbers = {one.number for one in (result.baseline_trial, result.best_trial) if one is not None}
    others = [one for one in known if one[0] not in numbers]
    if others:
        axes.scatter(*zip(*others, strict=True), 22, ACCENT, alpha=0.7, label="trial", zorder=3)
    own = None if result.baseline_trial is None else result.baseline_trial.number
    if lost := [number for number, value in points if not value and number != own]:
        axes.plot(lost, [0] * len(lost), "x", color=BAD, clip_on=False, markersize=5, label="does not fit, or failed")
    for name, one, mark, size, colour in (
        ("baseline", result.baseline_trial, "s", 50, BASELINE),
        ("best", result.best_trial, "*", 170, BEST),
    ):
        if one is not None and one.number in dict(known):
            axes.scatter([one.number], [dict(known)[one.number]], size, colour, marker=mark, label=name, zorder=4)
    if own is not None and own not in dict(known):
        axes.scatter(own, 0, 50, BAD, marker="s", label=NO_BASELINE, clip_on=False, zorder=4)
    axes.step(*zip(*best, strict=True), where="post", color=INK, linewidth=1.5, label="best so far")
    likely, every = _bounds(result, best, of_memory)
    for bound, style, said in ((likely, "-", "what is likely to fit"), (every, "--", "any untried")):
        if bound:
            label = f"bound: {said}"
            axes.step(*zip(*bound, strict=True), where="post", color=MUTED, linestyle=style, linewidth=1.2, label=label)
    label = f"peak memory, {unit_name}" if of_memory else LABELS[result.request.objective]
    axes.set(xlabel="trial", ylabel=label)
    top = max(value for _, value in known)
    reach = max([value for _, value in (*likely, *every)], default=0.0)
    axes.set_ylim(0, min(max(1.08 * top, 1.05 * reach), 2 * top))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()
    legend_below(figure, 3)
    return Drawing("search-progress", "Progress of the search", _caption(result, bool(every)), figure)


def _value(trial: Trial, objective: str, unit: int) -> float:
    """What the probe measured for the objective; 0 where it does not fit."""
    if not trial.measurement.feasible:
        return 0.0
    if objective == "memory":
        return (trial.measurement.peak_bytes or 0) / unit
    return float(speed(trial.measurement, objective) or 0.0)


def _best_so_far(trials: Sequence[Trial], points: Sequence[Point], of_memory: bool) -> list[Point]:
    """After each trial from the first that fits on; a probe that ended early never counts."""
    found: list[Point] = []
    for trial, (number, value) in zip(trials, points, strict=True):
        before = found[-1][1] if found else None
        if not value or trial.measurement.ended_early:
            value = before or 0.0
        elif before is not None:
            value = min(before, value) if of_memory else max(before, value)
        if value:
            found.append((number, value))
    return found


def _bounds(result: SearchResult, best: Sequence[Point], of_memory: bool) -> tuple[list[Point], list[Point]]:
    """What those likely to fit, and any, could still reach after each trial of which that is known."""
    likely: list[Point] = []
    every: list[Point] = []
    for number, value in best:
        if (prospect := result.prospects.get(number)) is not None:
            for points, share in ((likely, prospect.max_gain_if_fits), (every, prospect.max_gain)):
                if math.isfinite(share):
                    points.append((number, value * (1 - share if of_memory else 1 + share)))
    return likely, every


def _caption(result: SearchResult, bounded: bool) -> str:
    said = "Each trial as its probe measured it, before finalists were measured again. "
    if bounded:
        side = "below" if result.request.objective == "memory" else "above"
        said += (
            f"With 95 % confidence nothing untried lies {side} the bounds: drawn through, of what is likely to fit; "
        )
        said += "dashed, of all, each as far as it may fit after all. Where they meet the best, the search is over. "
    return f"{said}It ended: {result.stop_reason}."
