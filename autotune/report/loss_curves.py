"""The losses of the finalists beside those of float32, as SVG."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.numerics import DEVIATIONS, JUDGED, Curve, Numerics

COLORS = ("#4878a8", "#d1495b", "#66a182", "#edae49", "#8d5a97", "#7a5230")
GREY = "#8c8c8c"


def loss_curves(path: Path, numerics: Numerics, names: Mapping[int, str]) -> None:
    """Write an SVG: loss over optimizer steps, grey for float32's seeds and a colour for each trial.

    The band over the last steps is what the mean of the losses there may be. names: trial number -> what to call it; a
    flagged one is called so. What goes far from float32 leaves the picture. Raises OSError where the file
    cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4 + 0.22 * len(numerics.curves)), layout="constrained")
    axes = figure.add_subplot()
    for place, curve in enumerate(one for one in numerics.references if one.losses):
        label = None if place else f"fp32, {len(numerics.references)} seeds"
        axes.plot(_steps(curve), curve.losses, color=GREY, linewidth=1, label=label)
    if numerics.band:
        last = len(numerics.references[0].losses)
        label = f"mean of the last {JUDGED} losses: fp32's ± {DEVIATIONS:g} standard deviations"
        window = [max(1, last - JUDGED + 1), last]
        axes.fill_between(window, *numerics.band, color=GREY, alpha=0.25, linewidth=0, label=label)
    for place, (number, curve) in enumerate(numerics.curves.items()):
        if curve.losses:
            flagged = " (flagged)" if numerics.flag(number) else ""
            name = names.get(number, f"trial {number}") + flagged
            axes.plot(_steps(curve), curve.losses, color=COLORS[place % len(COLORS)], linewidth=1.5, label=name)
            _mark_the_end(axes, curve, COLORS[place % len(COLORS)])
    axes.set(xlabel="optimizer step", ylabel="training loss", title=f"Loss of the same steps ({numerics.weights})")
    if limits := _limits(numerics):
        axes.set_ylim(*limits)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(frameon=False, loc="outside lower center", ncols=1, fontsize="small")
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(path, format="svg", metadata={"Date": None})


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
