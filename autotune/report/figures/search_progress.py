"""Progress of the search: each trial, and the bound on what is untested."""

import math
from itertools import accumulate

from autotune.core.trial import Trial
from autotune.report.figures.canvas import MUTED, Drawing, new_figure
from autotune.report.figures.trials import draw_trials, memory_unit
from autotune.study.objective import speed
from autotune.study.result import SearchResult

LABELS = {"samples_per_second": "samples / second", "tokens_per_second": "tokens / second"}


def draw(result: SearchResult) -> Drawing | None:
    """The objective over the trials' numbers; None where fewer than two fit.

    The bound is the best probe so far, raised by what untested configurations could still gain.
    """
    objective = result.request.objective
    is_memory = objective == "memory"
    name, unit = memory_unit(trial.peak_bytes for trial in result.trials)
    values = {trial.number: _value(trial, objective, unit) for trial in result.trials if trial.feasible}
    points = {number: (float(number), value) for number, value in values.items() if value}
    if len(points) < 2:
        return None
    figure = new_figure()
    axes = figure.add_subplot()
    draw_trials(axes, result, points)
    top = 1.15 * max(values.values())
    bound = _bound(result, values, is_memory)
    if bound:
        axes.step(*zip(*bound, strict=True), where="post", color=MUTED, linewidth=1.2, zorder=1)
        x, y = bound[-1]
        axes.annotate("bound", (x, min(y, 1.9 * top)), (0, 8), textcoords="offset points", ha="right", color=MUTED)
    axes.set(xlabel="trial", ylabel=f"peak memory, {name}" if is_memory else LABELS[objective])
    axes.set_ylim(0, max(top, min(bound[-1][1] * 1.1, 2 * top) if bound else 0))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()
    side = "below" if is_memory else "above"
    text = f"With 95% confidence no untested configuration is {side} the bound. " if bound else ""
    caption = f"{text}It ended: {result.stop.short}."
    return Drawing("search-progress", "How the search went", caption, figure)


def _value(trial: Trial, objective: str, unit: int) -> float:
    """What was measured for the objective, by its rounds if it was measured again."""
    if objective == "memory":
        return (trial.peak_bytes or 0) / unit
    return float(speed(trial.final, objective) or 0.0)


def _bound(result: SearchResult, values: dict[int, float], is_memory: bool) -> list[tuple[int, float]]:
    """(trial, what untested configurations could reach) after each trial of which that is known."""
    numbers = [
        trial.number for trial in result.trials if values.get(trial.number) and not trial.measurement.ended_early
    ]
    best = dict(
        zip(numbers, accumulate((values[number] for number in numbers), min if is_memory else max), strict=True)
    )
    gaps = {number: result.prospects[number].max_gain for number in best if number in result.prospects}
    finite = {number: gap for number, gap in gaps.items() if math.isfinite(gap)}
    return [(number, best[number] * (1 - gap if is_memory else 1 + gap)) for number, gap in finite.items()]
