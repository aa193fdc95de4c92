"""The losses of the finalists beside those of float32."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from autotune.core.loss_curves import DEVIATIONS, JUDGED, Curve, Numerics
from autotune.report.figures.canvas import MUTED, PARTS, Drawing, legend_below, new_figure
from autotune.report.figures.words import told
from autotune.study.result import SearchResult

LETTERS = 58
"""Of a line of the legend."""


def draw(result: SearchResult) -> Drawing | None:
    """Loss over optimizer steps, grey for float32's seeds and a colour for each trial; None where none was compared.

    The band over the last steps is what the mean of the losses there may be; a flagged trial is called so. What goes far
    from float32 leaves the picture.
    """
    numerics = result.numerics
    if numerics is None or not numerics.has_losses:
        return None
    names = {trial.number: told(result, trial) for trial in result.trials}
    figure = new_figure(3.3 + 0.25 * len(numerics.curves))
    axes = figure.add_subplot()
    _curves(axes, numerics, names)
    axes.set(xlabel="optimizer step", ylabel="training loss")
    if limits := _limits(numerics):
        axes.set_ylim(*limits)
    axes.grid()
    legend_below(figure, 1)
    said = f"The same steps on the same data with {numerics.weights}: grey are float32's seeds, whose spread is what a training "
    said += "may differ by without anything being wrong. A cross ends a curve whose next loss was not finite."
    return Drawing("loss-curves", "Losses of the numerics check", said, figure)


def _curves(axes: Any, numerics: Numerics, names: Mapping[int, str]) -> None:
    for place, curve in enumerate(one for one in numerics.references if one.losses):
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
            colour = PARTS[place % len(PARTS)]
            axes.plot(_steps(curve), curve.losses, color=colour, linewidth=1.5, label=name)
            _mark_the_end(axes, curve, colour)


def _steps(curve: Curve) -> list[int]:
    return list(range(1, len(curve.losses) + 1))


def _mark_the_end(axes: Any, curve: Curve, color: str) -> None:
    """A cross at the last loss before one that is not finite."""
    step = curve.non_finite_step
    if step and step > 1:
        axes.plot(step - 1, curve.losses[step - 2], "x", color=color, markersize=9, markeredgewidth=2)


def _limits(numerics: Numerics) -> tuple[float, float] | None:
    """The losses to show: all that are no farther from float32's than those span; None where there are none."""
    known = [loss for curve in numerics.references for loss in curve.losses if math.isfinite(loss)]
    every = [loss for curve in numerics.curves.values() for loss in curve.losses if math.isfinite(loss)]
    if not known:
        return None
    shown = [*known, *every, *(numerics.band or ())]
    span = max(max(known) - min(known), 0.01 * abs(max(known)), 1e-6)
    low = max(min(shown), min(known) - span)
    high = min(max(shown), max(known) + span)
    return low - 0.05 * span, high + 0.05 * span
