"""The picture of several studies, as SVG: samples / second of baseline and best, and what a million samples cost."""

from pathlib import Path
from typing import Any

import pandas as pd

from autotune.core.units import three_digits

BLUE, GREY, INK = "#4878a8", "#b8b8b8", "#444444"
KINDS = (("baseline", -0.2, GREY), ("best", 0.2, BLUE))


def compared_bars(path: Path, table: pd.DataFrame) -> None:
    """Write an SVG: two bars a study, its baseline's and its best speed with their 95 % intervals.

    Where a price is known, what a million samples cost with each, on axes of their own; of several currencies, which no
    axis could hold, the words that say so. table: as `autotune.commands.compare.columns` has it.

    Raises OSError where the file cannot be written.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    priced = bool(table["price_per_hour"].notna().any())
    figure = Figure(figsize=(8.5, 1.4 + 0.75 * max(1, len(table))), layout="constrained")
    sides = figure.subplots(1, 2 if priced else 1, sharey=True, squeeze=False)[0]
    _speeds(sides[0], table)
    if priced:
        _costs(sides[1], table)
    for axes in sides:
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
    names = [f"{study}\n{device}" for study, device in zip(table["study"], table["device_name"], strict=True)]
    for label in (sides[0].set_yticks(range(len(table)), names), sides[0].get_yticklabels())[1]:
        label.set_parse_math(False)  # a name may hold a $
    sides[0].set_ylim(max(1, len(table)) - 0.4, -0.6)  # the first study on top; the other axes share it
    handles, labels = sides[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=2)
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _speeds(axes: Any, table: pd.DataFrame) -> None:
    axes.set_xlabel("samples / second")
    for kind, shift, color in KINDS:
        name = f"{kind}_samples_per_second"
        known = table[table[name].notna()]
        speed = known[name]
        # An interval without bound is drawn as far as the speed itself.
        below = speed - known[f"{name}_low"].clip(lower=0)
        above = known[f"{name}_high"].clip(upper=2 * speed) - speed
        spreads = {"xerr": [below, above], "ecolor": INK, "capsize": 2} if len(known) else {}
        bars = axes.barh(known.index + shift, speed, 0.38, color=color, label=kind, **spreads)
        axes.bar_label(bars, [three_digits(one) for one in speed], padding=4, fontsize="small")
    for row in table.index[table["best_samples_per_second"].isna()]:
        place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate("nothing fits", (0, row + 0.2), fontsize="small", color="#666666", **place)


def _costs(axes: Any, table: pd.DataFrame) -> None:
    axes.set_xlabel("cost of a million samples")
    currencies = table.loc[table["price_per_hour"].notna(), "currency"].unique()
    if len(currencies) > 1:
        every = " and ".join(sorted(one or "no named currency" for one in currencies))
        said = axes.text(
            0.5, 0.5, f"not drawn:\nprices are in {every}", transform=axes.transAxes, ha="center", va="center"
        )
        said.set_parse_math(False)
        axes.set_xticks([])
        return
    for kind, shift, color in KINDS:
        known = table[table[f"{kind}_cost_per_million_samples"].notna()]
        costs = known[f"{kind}_cost_per_million_samples"]
        bars = axes.barh(known.index + shift, costs, 0.38, color=color)
        told = [
            f"{three_digits(cost)} {currency}".strip() for cost, currency in zip(costs, known["currency"], strict=True)
        ]
        for label in axes.bar_label(bars, told, padding=4, fontsize="small"):
            label.set_parse_math(False)
