"""Losses of the answer in a band of the reference's, from seed to seed."""

import math
from collections.abc import Sequence
from statistics import fmean

from autotune.core.loss_curves import Curve
from autotune.core.trial import Trial
from autotune.core.units import counted
from autotune.report.figures.canvas import BASELINE, BEST, Drawing, new_figure
from autotune.report.trial_text import is_same
from autotune.study.result import SearchResult


def draw(result: SearchResult) -> Drawing | None:
    """Loss over optimizer steps: the reference's lowest to highest over the rounds as a band, a trial's mean as a line.

    The trial is the answer, or where the user's own settings or nothing won the fastest that learns differently. None where it
    was not compared. The line ends where a loss is not finite, and leaves the picture where it is far from the band.
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
    figure = new_figure()
    axes = figure.add_subplot()
    axes.fill_between(range(1, len(low) + 1), low, high, color=BASELINE, alpha=0.35, linewidth=2)
    axes.plot(range(1, len(own) + 1), own, color=BEST, linewidth=1.8)
    name = "answer" if is_same(trial, result.best_trial) else f"trial {trial.number}"
    seeds = counted(len(shared), "seed")
    # Losses fall: above to the right of a point and below to its left there is no line.
    for text, values, colour, place, offset, side in (
        (name, own, BEST, 1, (8, 6), "left"),
        (f"{numerics.reference}, {seeds}", low, BASELINE, 2, (-8, -14), "right"),
    ):
        step = place * (len(values) - 1) // 3
        value = min(max(values[step], min(low)), max(high))
        axes.annotate(text, (step + 1, value), offset, textcoords="offset points", color=colour, ha=side)
    axes.set(xlabel="optimizer step", ylabel="loss")
    axes.set_ylim(min([*low, *near]) - 0.08 * span, max([*high, *near]) + 0.12 * span)
    axes.grid()
    ends = zip(low, own, high, strict=False)
    inside = all(a <= loss <= b or math.isclose(loss, (a + b) / 2, rel_tol=0.01) for a, loss, b in ends)
    stays = inside and len(own) == len(low)
    caption = f"The line of {name} {'stays in' if stays else 'leaves'} the band of {numerics.reference} over {seeds}"
    if len(shared) == 1:
        caption = f"The losses of {name} {'follow' if stays else 'leave'} those of {numerics.reference}, of one seed"
    caption = f"{caption.replace('of answer', 'of the answer')} ({numerics.weights})."
    return Drawing("loss-curves", "Losses", caption, figure)


def _subject(result: SearchResult) -> Trial | None:
    """The trial whose losses are in question."""
    best = result.best_trial
    if best is None or is_same(best, result.baseline_trial):
        rivals = [trial for trial, _ in result.disqualified if trial.disqualified_reason]
        return rivals[0] if rivals else best
    return best


def _columns(curves: Sequence[Curve]) -> list[list[float]]:
    """The losses of each step over the curves, up to the first that is not finite or that one has not."""
    columns = []
    for losses in zip(*(curve.losses for curve in curves), strict=False):
        if not all(map(math.isfinite, losses)):
            break
        columns.append(list(losses))
    return columns
