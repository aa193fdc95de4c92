"""Picture of a comparison, as SVG: speed of baseline and best of each study, and the cost of a million samples."""

from collections.abc import Sequence

from autotune.commands.bars import Side, bars_svg
from autotune.commands.compare.text import StudyRow, interval_of

ROLES = {"baseline": "muted", "best": "p3"}


def compared_svg(rows: Sequence[StudyRow]) -> str:
    """Two bars a study; on a second side costs if a price is given, unless they are in several currencies."""
    speeds = {role: [interval_of(row, f"{kind}_samples_per_second") for row in rows] for kind, role in ROLES.items()}
    costs = {role: [row[f"{kind}_cost_per_million_samples"] for row in rows] for kind, role in ROLES.items()}
    missing = ["" if row["best_samples_per_second"] is not None else "nothing fits" for row in rows]
    currencies = {row["currency"] or "no named currency" for row in rows if row["price_per_hour"] is not None}
    sides = [Side("samples / second", speeds, missing)]
    if len(currencies) == 1:
        sides.append(Side("cost of a million samples", costs, units=[row["currency"] for row in rows]))
    elif currencies:
        note = f"not drawn:\nprices are in {' and '.join(sorted(currencies))}"
        sides.append(Side("cost of a million samples", {role: [] for role in costs}, [note]))
    names = [f"{row['study']}\n{row['device_name']}" for row in rows]
    return bars_svg(
        "Speed of each study's baseline and best configuration",
        names,
        sides,
        [(role, kind) for kind, role in ROLES.items()],
    )
