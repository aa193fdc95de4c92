"""Picture of a comparison, as SVG: speed of baseline and best of each study, and the cost of a million samples."""

from collections.abc import Sequence

from autotune.commands.bars import Bars, Side, bars_svg
from autotune.commands.compare.text import Row, interval_of
from autotune.core.units import three_digits
from autotune.report.figures.canvas import ACCENT, MUTED

KINDS = (("baseline", -0.2, MUTED), ("best", 0.2, ACCENT))


def compared_svg(rows: Sequence[Row]) -> str:
    """Two bars a study; on a second side costs where a price is known, unless they are in several currencies."""
    speeds = [
        Bars([interval_of(row, f"{kind}_samples_per_second") for row in rows], color, kind, shift)
        for kind, shift, color in KINDS
    ]
    missing = ["" if row["best_samples_per_second"] is not None else "nothing fits" for row in rows]
    sides = [Side("samples / second", speeds, missing)]
    currencies = {row["currency"] or "no named currency" for row in rows if row["price_per_hour"] is not None}
    if len(currencies) > 1:
        note = f"not drawn:\nprices are in {' and '.join(sorted(currencies))}"
        sides.append(Side("cost of a million samples", note=note))
    elif currencies:
        sides.append(Side("cost of a million samples", [_costs(rows, *kind) for kind in KINDS]))
    names = [f"{row['study']}\n{row['device_name']}" for row in rows]
    return bars_svg("compare", "Speed of each study's baseline and best configuration", names, sides, 0.75)


def _costs(rows: Sequence[Row], kind: str, shift: float, color: str) -> Bars:
    costs = [row[f"{kind}_cost_per_million_samples"] for row in rows]
    texts = [
        "" if cost is None else f"{three_digits(cost)} {row['currency']}".strip()
        for cost, row in zip(costs, rows, strict=True)
    ]
    return Bars(costs, color, shift=shift, texts=texts)
