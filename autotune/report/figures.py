"""Figures of a report as SVG: for its page, and as files."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from statistics import fmean

from autotune.core.loss_curves import Curve
from autotune.core.trial import Trial
from autotune.core.units import counted, format_bytes, three_digits
from autotune.judge.objective import speed
from autotune.report.axes import LINE, Axis, Dot, Label, Panel, Place, drawn
from autotune.report.charts import role_of
from autotune.report.trial_text import is_same, short_words, speed_text
from autotune.study.result import SearchResult

LABELS = {"samples_per_second": "samples / second", "tokens_per_second": "tokens / second"}

_X, _Y = (0.0, 300.0), (205.0, 0.0)
"""Ends of the axes in points: on a phone's width the text has its nominal size."""


@dataclass(frozen=True)
class Figure:
    """One figure; all but `svg` is plain text."""

    name: str  # for links
    title: str
    hint: str  # what it shows
    caption: str
    svg: str  # an `<svg>` element; colours are CSS variables of the page


def figures(result: SearchResult) -> list[Figure]:
    """The figures that this result has the numbers for, in the order of the page."""
    found = (draw(result) for draw in (speed_against_memory, search_progress, loss_curves))
    return [figure for figure in found if figure]


def figure_files(result: SearchResult) -> dict[str, str | None]:
    """File name -> an SVG file with its claim above the figure; None if the result has not the numbers for it."""
    figure = speed_against_memory(result, _claim(result))
    return {"speed_against_memory.svg": figure.svg if figure else None}


def speed_against_memory(result: SearchResult, heading: str = "") -> Figure | None:
    """Samples / second over peak memory, one mark a trial that fits; None if fewer than two have both.

    The limit is a line if it is near; a trial that ran out of memory has no speed and is in the caption.
    """
    fitting = [trial for trial in result.trials if trial.feasible and trial.samples_per_second and trial.peak_bytes]
    if len(fitting) < 2:
        return None
    most, allowed = max(trial.peak_bytes or 0 for trial in fitting), result.allowed_bytes
    name, unit = memory_unit([most])
    limits = [allowed / unit] if allowed < 2 * most else []
    places = {t.number: ((t.peak_bytes or 0) / unit, float(t.samples_per_second or 0)) for t in fitting}
    sizes, rates = zip(*places.values(), strict=True)
    x, y = Axis.around(f"peak memory, {name}", [*sizes, *limits], *_X), Axis.around("samples / second", rates, *_Y)
    dots, labels = _trials(result, places, x, y)
    labels += [("bad", f"allowed: {format_bytes(allowed)}", x.at(limit) - 5, _Y[0] - 5, "end") for limit in limits]
    lost = len(result.trials) - len(fitting)
    far = "" if limits else f" {format_bytes(allowed)} are allowed, far right of the picture."
    missing = f" Not in it: {lost} without a speed or too large." if lost else ""
    caption = f"Higher is faster, further left needs less memory.{far}{missing}"
    lines = [("bad", "polyline", [(limit, y.low), (limit, y.high)]) for limit in limits]
    title = "Speed against memory"
    svg = drawn(title, [Panel(x, y, dots=dots, lines=lines, labels=labels)], heading, caption)
    return Figure("speed-against-memory", title, "every trial that fits", caption, svg)


def _claim(result: SearchResult) -> str:
    """`51.3 instead of 35.2 samples/s, 347 MiB instead of 364 MiB`; the study's name if there is nothing to compare."""
    best, baseline = result.best_trial, result.baseline_trial
    if best is None or baseline is None or is_same(best, baseline) or not baseline.feasible:
        return result.title
    speeds = [three_digits(float(trial.samples_per_second or 0.0)) for trial in (best, baseline)]
    peaks = [format_bytes(trial.peak_bytes) for trial in (best, baseline)]
    return f"{speeds[0]} instead of {speeds[1]} samples/s, {peaks[0]} instead of {peaks[1]}"


def search_progress(result: SearchResult) -> Figure | None:
    """The objective over the trials' numbers; None if fewer than two fit.

    The bound is the best probe so far, raised by what untested configurations could still gain.
    """
    objective = result.request.objective
    values = {trial.number: float(speed(trial.final, objective) or 0.0) for trial in result.trials if trial.feasible}
    points = {number: (float(number), value) for number, value in values.items() if value}
    if len(points) < 2:
        return None
    bound, top = _bound(result, values), 1.15 * max(values.values())
    steps = [place for before, after in pairwise(bound) for place in (before, (after[0], before[1]))] + bound[-1:]
    high = max([top, *(min(bound[-1][1] * 1.1, 2 * top) for _ in bound[-1:])])
    x = Axis.around("trial", [number for number, _ in points.values()], *_X, whole=True)
    y = Axis(LABELS[objective], 0.0, high, *_Y)
    dots, labels = _trials(result, points, x, y)
    labels += [("muted", "bound", x.at(last), y.at(min(most, 1.9 * top)) - 7, "end") for last, most in bound[-1:]]
    text = "With 95% confidence no untested configuration is above the bound. " if bound else ""
    caption = f"{text}It ended: {result.stop.short}."
    title, hint = "How the search went", "trial by trial, and what may be left"
    svg = drawn(title, [Panel(x, y, dots=dots, lines=[("muted", "polyline", steps)], labels=labels)])
    return Figure("search-progress", title, hint, caption, svg)


def _bound(result: SearchResult, values: dict[int, float]) -> list[Place]:
    """(trial, speed that untested configurations could reach) after each trial for which that is known."""
    whole = [t.number for t in result.trials if values.get(t.number) and not t.measurement.ended_early]
    best = accumulate((values[number] for number in whole), max)
    gaps = [result.prospects[number].max_gain if number in result.prospects else math.inf for number in whole]
    bounds = [value * (1 + gap) for value, gap in zip(best, gaps, strict=True)]
    return [(float(number), bound) for number, bound in zip(whole, bounds, strict=True) if math.isfinite(bound)]


def loss_curves(result: SearchResult) -> Figure | None:
    """Loss over optimizer steps: the reference's lowest to highest over the rounds as a band, a trial's mean as a line.

    The trial is the answer, or if the user's own settings or nothing won the fastest that learns differently. None if it
    was not compared. The line ends at a loss that is not finite, and leaves the picture if it is far from the band.
    """
    numerics, trial = result.numerics, _subject(result)
    if numerics is None or trial is None or numerics.difference(trial.number) is None:
        return None
    shared = [number for number in numerics.curves[trial.number] if number in numerics.references]
    reference = _columns([numerics.references[number] for number in shared])
    own = [fmean(losses) for losses in _columns([numerics.curves[trial.number][number] for number in shared])]
    low, high = [min(losses) for losses in reference], [max(losses) for losses in reference]
    span = max(high) - min(low) or 1.0
    near = [loss for loss in own if min(low) - span <= loss <= max(high) + span]
    name = "answer" if is_same(trial, result.best_trial) else f"trial {trial.number}"
    seeds = counted(len(shared), "seed")
    x = Axis.around("optimizer step", [1.0, float(max(len(own), len(low)))], *_X, whole=True)
    y = Axis("loss", min([*low, *near]) - 0.08 * span, max([*high, *near]) + 0.12 * span, *_Y)
    band = [*enumerate(low, 1), *reversed([*enumerate(high, 1)])]
    lines = [("baseline", "polygon", band), ("best", "polyline", [*enumerate(own, 1)])]
    # Losses fall: above to the right of a point and below to its left there is no line.
    first, second = (len(own) - 1) // 3, 2 * (len(low) - 1) // 3
    below = min(y.at(low[second]) + 18, _Y[0] - 5)
    labels = [
        ("best", name, x.at(first + 1) + 8, y.at(min(max(own[first], min(low)), max(high))) - 6, "start"),
        ("baseline", f"{numerics.reference}, {seeds}", x.at(second + 1) - 8, below, "end"),
    ]
    ends = zip(low, own, high, strict=False)
    inside = all(a <= loss <= b or math.isclose(loss, (a + b) / 2, rel_tol=0.01) for a, loss, b in ends)
    stays = inside and len(own) == len(low)
    caption = f"The line of {name} {'stays in' if stays else 'leaves'} the band of {numerics.reference} over {seeds}"
    if len(shared) == 1:
        caption = f"The losses of {name} {'follow' if stays else 'leave'} those of {numerics.reference}, of one seed"
    caption = f"{caption.replace('of answer', 'of the answer')} ({numerics.weights})."
    svg = drawn("Losses", [Panel(x, y, lines=lines, labels=labels)])
    return Figure("loss-curves", "Losses", "answer and fp32, step by step", caption, svg)


def _subject(result: SearchResult) -> Trial | None:
    """The trial whose losses are in question."""
    best = result.best_trial
    if best is None or is_same(best, result.baseline_trial):
        rivals = [trial for trial, _ in result.disqualified if trial.disqualified_reason]
        return rivals[0] if rivals else best
    return best


def _columns(curves: Sequence[Curve]) -> list[list[float]]:
    """The losses of each step over the curves, up to the first that is not finite or that one has not."""
    steps = zip(*(curve.losses for curve in curves), strict=False)
    return [list(losses) for losses in takewhile(lambda losses: all(map(math.isfinite, losses)), steps)]


def _trials(result: SearchResult, places: Mapping[int, Place], x: Axis, y: Axis) -> tuple[list[Dot], list[Label]]:
    """A mark a trial, the answer's and the user's last, and the names of these two. places: number -> values on the axes."""
    base = result.baseline_trial.configuration if result.baseline_trial else None
    shown = sorted((t for t in result.trials if t.number in places), key=lambda trial: role_of(trial, result))
    words = [", ".join(short_words(trial.configuration, base)) for trial in shown]
    titles = [f"{t.number}: {text}, {speed_text(t)} samples/s" for t, text in zip(shown, words, strict=True)]
    dots = [(role_of(t, result) or "p3", places[t.number], t, title) for t, title in zip(shown, titles, strict=True)]
    names = {"baseline": result.baseline_word, "best": "answer"}
    named = sorted((y.at(up), x.at(right), role) for role, (right, up), *_ in dots if role in names)
    labels = [
        (f"{role} name", names[role], min(max(20.0, at), x.end - 20), down - 8, "middle") for down, at, role in named
    ]
    if len(named) == 2 and named[1][0] - named[0][0] < LINE and abs(named[1][1] - named[0][1]) < 3 * LINE:
        labels[1] = (*labels[1][:3], named[1][0] + 18, "middle")  # below its mark, as the other's name is in the way
    return dots, labels


def memory_unit(sizes: Iterable[float | None]) -> tuple[str, int]:
    """The name and bytes of the unit for the largest of these sizes."""
    return ("GiB", 2**30) if max((size or 0 for size in sizes), default=0) >= 2**30 else ("MiB", 2**20)
