"""Losses of the confirmed trials against those of the reference."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

from autotune.core.loss_curves import Curve, Numerics
from autotune.report.figures.canvas import MUTED, PARTS, Drawing, legend_below, new_figure
from autotune.report.figures.rows import trial_name
from autotune.study.result import SearchResult

LETTERS = 58
"""Of a line of the legend."""


def draw(result: SearchResult) -> Drawing | None:
    """Loss minus the reference's over optimizer steps, a colour for each trial and a line for each round that both ran; None
    where none was compared.

    The grey lines are what the reference itself learned by then, below its first loss: a trial that learns nothing rises as
    far above 0 as they fall below it. What is farther from 0 than twice that is outside the picture.
    """
    numerics = result.numerics
    if numerics is None or not any(map(numerics.difference, numerics.curves)):
        return None
    names = {trial.number: trial_name(result, trial) for trial in result.trials}
    figure = new_figure(3.3 + 0.25 * len(numerics.curves))
    axes = figure.add_subplot()
    learned = [
        [loss - curve.losses[0] for loss in curve.losses] for curve in numerics.references.values() if curve.losses
    ]
    for place, losses in enumerate(learned):
        label = None if place else f"what {numerics.reference} learned in each round"
        axes.plot(_steps(losses), losses, color=MUTED, linewidth=1, label=label)
    for place, (number, curves) in enumerate(numerics.curves.items()):
        flagged = " (flagged)" if numerics.flag(number) else ""
        name = textwrap.fill(names.get(number, f"trial {number}") + flagged, LETTERS)
        _differences(axes, numerics, curves, PARTS[place % len(PARTS)], name)
    most = max((abs(loss) for losses in learned for loss in losses if math.isfinite(loss)), default=0.0) or 1.0
    axes.set(xlabel="optimizer step", ylabel=f"loss minus {numerics.reference}'s", ylim=(-1.1 * most, 1.1 * most))
    axes.grid()
    legend_below(figure, 1)
    caption = (
        f"The same steps on the same data with {numerics.weights}, each round with a seed of its own. A line at 0 learns exactly "
        f"as {numerics.reference} does; one that learned nothing would rise as far as the grey lines fall. A line ends where "
        "its loss is not finite."
    )
    return Drawing("loss-curves", "Losses in the confirmation rounds", caption, figure)


def _differences(axes: Any, numerics: Numerics, curves: Mapping[int, Curve], color: str, name: str) -> None:
    """The trial's losses minus the reference's in each round that both ran, up to the first that is not finite."""
    for number, curve in curves.items():
        reference = numerics.references.get(number, Curve())
        pairs = zip(curve.losses, reference.losses, strict=False)
        differences = [own - other for own, other in pairs]
        finite = next((step for step, loss in enumerate(differences) if not math.isfinite(loss)), len(differences))
        if finite:
            axes.plot(_steps(differences[:finite]), differences[:finite], color=color, linewidth=1.5, label=name)
            name = "_"  # one line of the legend


def _steps(losses: list[float]) -> list[int]:
    return list(range(1, len(losses) + 1))
