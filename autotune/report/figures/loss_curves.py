"""Losses of the answer in a band of the reference's, from seed to seed."""

import math
from collections.abc import Sequence
from statistics import fmean

from autotune.core.loss_curves import Curve
from autotune.core.units import counted
from autotune.report.figures.canvas import BASELINE, BEST, Drawing, new_figure
from autotune.study.result import SearchResult


def draw(result: SearchResult) -> Drawing | None:
    """Loss over optimizer steps: the reference's lowest to highest over the rounds as a band, the answer's mean as a line.

    None where the answer was not compared. Both are of the same rounds; the line ends where a loss is not finite.
    """
    numerics, best = result.numerics, result.best_trial
    if numerics is None or best is None or numerics.difference(best.number) is None:
        return None
    shared = [number for number in numerics.curves[best.number] if number in numerics.references]
    reference = _columns([numerics.references[number] for number in shared])
    own = [fmean(losses) for losses in _columns([numerics.curves[best.number][number] for number in shared])]
    steps = range(1, len(reference) + 1)
    figure = new_figure()
    axes = figure.add_subplot()
    low, high = [min(losses) for losses in reference], [max(losses) for losses in reference]
    axes.fill_between(steps, low, high, color=BASELINE, alpha=0.35, linewidth=2)
    axes.plot(range(1, len(own) + 1), own, color=BEST, linewidth=1.8)
    for text, values, colour, place in (
        ("answer", own, BEST, 1),
        (f"{numerics.reference}, by seed", high, BASELINE, 2),
    ):
        step = place * (len(values) - 1) // 3
        axes.annotate(text, (step + 1, values[step]), (8, 6), textcoords="offset points", color=colour)
    axes.set(xlabel="optimizer step", ylabel="loss")
    axes.margins(x=0.12)
    axes.grid()
    inside = all(
        a <= loss <= b or math.isclose(loss, a, rel_tol=0.01) for a, loss, b in zip(low, own, high, strict=False)
    )
    where = "stays in" if inside else "leaves"
    seeds = counted(len(shared), "seed")
    caption = f"The answer's line {where} the band of {numerics.reference} over {seeds} ({numerics.weights})."
    return Drawing("loss-curves", "Losses", caption, figure)


def _columns(curves: Sequence[Curve]) -> list[list[float]]:
    """The losses of each step over the curves, up to the first that is not finite or that one has not."""
    columns = []
    for losses in zip(*(curve.losses for curve in curves), strict=False):
        if not all(map(math.isfinite, losses)):
            break
        columns.append(list(losses))
    return columns
