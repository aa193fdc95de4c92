"""The finalists' losses beside float32's, as SVG."""

from collections.abc import Mapping
from pathlib import Path

from autotune.numerics import DEVIATIONS, JUDGED, Numerics

COLORS = ("#d1495b", "#4878a8", "#6a9f58", "#b07aa1", "#e08214")


def loss_curves(path: Path, numerics: Numerics, names: Mapping[int, str]) -> None:
    """Write an SVG: loss over optimizer steps, float32's seeds in grey, each finalist in its colour.

    names: trial number -> what the legend calls it. The band over the judged steps is float32's mean ± 3 standard
    deviations. Raises OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for seed, curve in enumerate(numerics.references):
        label = f"fp32, {len(numerics.references)} seeds" if seed == 0 else None
        axes.plot(range(1, len(curve.losses) + 1), curve.losses, color="#999999", linewidth=0.8, label=label)
    if numerics.band is not None:
        last = max(len(curve.losses) for curve in numerics.references)
        axes.fill_between(
            [last - JUDGED + 1, last], *numerics.band, color="#999999", alpha=0.25, label=f"± {DEVIATIONS:g} deviations"
        )
    for place, (number, curve) in enumerate(numerics.curves.items()):
        name = names.get(number, f"trial {number}")
        label = f"{name} (flagged)" if numerics.flag(number) else name
        steps = range(1, len(curve.losses) + 1)
        axes.plot(steps, curve.losses, color=COLORS[place % len(COLORS)], linewidth=1.5, label=label)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"loss ({numerics.weights})")
    axes.legend(frameon=False, fontsize="x-small")
    FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
