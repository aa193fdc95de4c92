"""Picture of a comparison, as SVG: speed of baseline and best of each study, and the cost of a million samples."""

from collections.abc import Sequence
from typing import Any

from autotune.commands.bars import bars_svg, draw_bars, draw_missing
from autotune.commands.compare.text import Row, interval_of
from autotune.core.units import three_digits
from autotune.report.figures.canvas import ACCENT, MUTED

KINDS = (("baseline", -0.2, MUTED), ("best", 0.2, ACCENT))


def compared_svg(rows: Sequence[Row]) -> str:
    """Two bars a study; on a second side costs where a price is known, unless they are in several currencies."""
    currencies = {row["currency"] or "no named currency" for row in rows if row["price_per_hour"] is not None}

    def speeds(axes: Any) -> None:
        for kind, shift, color in KINDS:
            draw_bars(axes, [interval_of(row, f"{kind}_samples_per_second") for row in rows], color, kind, shift)
        missing = ["" if row["best_samples_per_second"] is not None else "nothing fits" for row in rows]
        draw_missing(axes, missing, KINDS[0][1])

    def costs(axes: Any) -> None:
        if len(currencies) > 1:
            note = f"not drawn:\nprices are in {' and '.join(sorted(currencies))}"
            axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center")
            axes.set_xticks([])
            return
        for kind, shift, color in KINDS:
            values = [row[f"{kind}_cost_per_million_samples"] for row in rows]
            texts = [
                f"{three_digits(value or 0.0)} {row['currency']}".strip()
                for value, row in zip(values, rows, strict=True)
            ]
            draw_bars(axes, values, color, shift=shift, texts=texts)

    sides = {"samples / second": speeds} | ({"cost of a million samples": costs} if currencies else {})
    names = [f"{row['study']}\n{row['device_name']}" for row in rows]
    return bars_svg("compare", "Speed of each study's baseline and best configuration", names, sides, 0.75)
