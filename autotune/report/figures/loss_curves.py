"""Losses of the finalists against those of float32."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from autotune.core.loss_curves import DEVIATIONS, JUDGED, Curve, Numerics
from autotune.report.figures.canvas import MUTED, PARTS, Drawing, legend_below, new_figure
from autotune.report.figures.rows import trial_name
from autotune.study.result import SearchResult

LETTERS = 58
"""Of a line of the legend."""


def draw(result: SearchResult) -> Drawing | None:
    """Loss over optimizer steps, grey for float32's seeds and a colour for each trial; None where none was compared.

    The band over the last steps is the allowed mean of the losses there; the legend names flagged trials. What is far from
    float32 is outside the picture.
    """
    numerics = result.numerics
    if numerics is None or not numerics.has_losses:
        return None
    names = {trial.number: trial_name(result, trial) for trial in result.trials}
    figure = new_figure(3.3 + 0.25 * len(numerics.curves))
    axes = figure.add_subplot()
    _curves(axes, numerics, names)
    axes.set(xlabel="optimizer step", ylabel="training loss")
    if limits := _limits(numerics):
        axes.set_ylim(*limits)
    axes.grid()
    legend_below(figure, 1)
    caption = (
        f"The same steps on the same data with {numerics.weights}: grey are float32's seeds, whose spread is what a training "
        "may differ by without anything being wrong. A cross ends a curve whose next loss was not finite."
    )
    return Drawing("loss-curves", "Losses of the numerics check", caption, figure)


def _curves(axes: Any, numerics: Numerics, names: Mapping[int, str]) -> None:
    for place, curve in enumerate(curve for curve in numerics.references if curve.losses):
        label = None if place else f"fp32, {len(numerics.references)} seeds"
        axes.plot(_steps(curve), curve.losses, color=MUTED, linewidth=1, label=label)
    if numerics.band:
        last = len(numerics.references[0].losses)
        label = f"mean of the last {JUDGED} losses: fp32's ± {DEVIATIONS:g} standard deviations"
        window = [max(1, last - JUDGED + 1), last]
        axes.fill_between(window, *numerics.band, color=MUTED, alpha=0.25, linewidth=0, label=label)
    for place, (number, curve) in enumerate(numerics.curves.items()):
        if curve.losses:
            flagged = " (flagged)" if numerics.flag(number) else ""
            name = textwrap.fill(names.get(number, f"trial {number}") + flagged, LETTERS)
            colour, step = PARTS[place % len(PARTS)], curve.non_finite_step
            axes.plot(_steps(curve), curve.losses, color=colour, linewidth=1.5, label=name)
            if step and step > 1:  # a cross at the last finite loss
                axes.plot(step - 1, curve.losses[step - 2], "x", color=colour, markersize=9, markeredgewidth=2)


def _steps(curve: Curve) -> list[int]:
    return list(range(1, len(curve.losses) + 1))


def _limits(numerics: Numerics) -> tuple[float, float] | None:
    """The losses to show: all that are no farther from float32's than those span; None where there are none."""
    references = [loss for curve in numerics.references for loss in curve.losses if math.isfinite(loss)]
    losses = [loss for curve in numerics.curves.values() for loss in curve.losses if math.isfinite(loss)]
    if not references:
        return None
    shown = [*references, *losses, *(numerics.band or ())]
    span = max(max(references) - min(references), 0.01 * abs(max(references)), 1e-6)
    low = max(min(shown), min(references) - span)
    high = min(max(shown), max(references) + span)
    return low - 0.05 * span, high + 0.05 * span
