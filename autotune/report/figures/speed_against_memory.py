"""Speed against memory: every trial that fits, the answer, the user's settings, and what was allowed."""

from autotune.core.units import format_bytes, three_digits
from autotune.report.figures.canvas import BAD, Drawing, new_figure
from autotune.report.figures.trials import draw_trials, memory_unit
from autotune.report.trial_text import is_same
from autotune.study.result import SearchResult


def draw(result: SearchResult) -> Drawing | None:
    """Samples / second over peak memory, one mark a trial that fits; None where fewer than two have both.

    The limit is a line where it is near; what ran out of memory has no speed and is in the caption.
    """
    points = {
        trial.number: (float(trial.peak_bytes), float(trial.samples_per_second))
        for trial in result.trials
        if trial.feasible and trial.samples_per_second and trial.peak_bytes
    }
    if len(points) < 2:
        return None
    most, allowed = max(x for x, _ in points.values()), result.allowed_bytes
    name, unit = memory_unit([most])
    figure = new_figure()
    axes = figure.add_subplot()
    scaled = {number: (x / unit, y) for number, (x, y) in points.items()}
    draw_trials(axes, result, scaled)
    if is_near := allowed < 2 * most:
        axes.axvline(allowed / unit, color=BAD, linewidth=1.2, zorder=1)
        label = f"allowed: {format_bytes(allowed)} "
        axes.text(allowed / unit, 0.02, label, color=BAD, ha="right", transform=axes.get_xaxis_transform())
    axes.set(xlabel=f"peak memory, {name}", ylabel="samples / second")
    axes.grid()
    lost = len(result.trials) - len(points)
    far = "" if is_near else f" {format_bytes(allowed)} are allowed, far right of the picture."
    caption = f"Higher is faster, further left needs less memory.{far}"
    caption += f" Not in it: {lost} without a speed or too large." if lost else ""
    return Drawing("speed-against-memory", "Speed against memory", caption, figure, _claim(result))


def _claim(result: SearchResult) -> str:
    """`51.3 instead of 35.2 samples/s, 347 MiB instead of 364 MiB`; the study's name where there is nothing to compare."""
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or baseline is None or is_same(best, baseline) or not baseline.feasible:
        return result.title
    speeds = [three_digits(float(trial.samples_per_second or 0.0)) for trial in (best, baseline)]
    peaks = [format_bytes(trial.peak_bytes) for trial in (best, baseline)]
    return f"{speeds[0]} instead of {speeds[1]} samples/s, {peaks[0]} instead of {peaks[1]}"
