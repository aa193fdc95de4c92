"""Text of a comparison (a numbered table of figures, a paragraph on each study, compare.md) and its picture."""

from collections.abc import Sequence
from typing import Any

from autotune.commands.bars import Side, bars_svg
from autotune.commands.layout import ratio_text
from autotune.core.interval import Interval
from autotune.core.units import counted, format_bytes, format_interval, three_digits
from autotune.report.claim import State, Verdict, gain_words
from autotune.report.columns import FIRST
from autotune.report.markdown import markdown_table, markdown_text
from autotune.report.trial_text import interval_of

StudyRow = dict[str, Any]
"""A row of `autotune.commands.compare.columns` as plain values, None if one is missing."""


def figures(rows: Sequence[StudyRow]) -> list[list[str]]:
    """Head and rows: number, speeds (samples / second ± half their 95 % interval), speed-up, peak; MFU and cost if known."""
    used = any(row["best_mfu"] is not None for row in rows)
    priced = any(row["price_per_hour"] is not None for row in rows)
    shown = [True] * 5 + [used, priced]
    table = [["#", "baseline", "best", "speed-up", "peak", "MFU", "cost of a million samples"]]
    table += [
        [
            str(number),
            *(_speed_text(interval_of(row, f"{kind}_samples_per_second")) for kind in ("baseline", "best")),
            _speed_up_text(row),
            format_bytes(row["best_peak_bytes"]),
            "-" if row["best_mfu"] is None else f"{row['best_mfu']:.1%}",
            _cost_text(row),
        ]
        for number, row in enumerate(rows, start=1)
    ]
    return [[cell for cell, is_shown in zip(cells, shown, strict=True) if is_shown] for cells in table]


def about(row: StudyRow) -> list[str]:
    """Sentences on a study: its name, work, machine, best configuration, and how it compares with the others."""
    length = f", {row['sequence_length']} tokens" if row["sequence_length"] else ""
    best = f"{row['best_unlike_baseline']}{'' if row['confirmed'] else '; not proven'}"
    lines = [
        row["study"],
        f"{row['model']}, {row['task']}{length}, global batch {row['global_batch_size']}",
        f"{row['device']} ({row['device_name']}), {row['versions']}",
        f"best: {row['why_no_best'] or best}",
        f"{counted(row['trials'], 'trial')}, {counted(row['probes'], 'probe')}",
    ]
    if row["why_no_speedup"]:
        lines.append(f"{'speed-up' if row['speedup'] is not None else 'no speed-up'}: {row['why_no_speedup']}")
    if row["compared_with"]:
        ratio = interval_of(row, "times_as_fast")
        is_vague = ratio is None or ratio.is_vague
        text = "cannot tell whether it is faster than" if is_vague else f"{ratio_text(ratio)} as fast as"
        lines.append(f"{text} {row['compared_with']}")
    if row["why_not_compared"] not in ("", FIRST):
        lines.append(f"compared with no other: {row['why_not_compared']}")
    return [*lines, *([f"warnings: {row['warnings']}"] if row["warnings"] else [])]


def _speed_text(speed: Interval | None) -> str:
    return "-" if speed is None else format_interval(speed, speed.low, speed.high)


def _speed_up_text(row: StudyRow) -> str:
    """`1.46x (1.26 to 1.70)`, `about 1.5x (1.3 to 1.9)` if that is rough, or words if there is none."""
    gain = interval_of(row, "speedup")
    if gain is None:
        return gain_words(State(row["state"]))
    return f"{'' if row['verdict'] == Verdict.SOLID else 'about '}{ratio_text(gain)}"


def _cost_text(row: StudyRow) -> str:
    """`2.71 -> 2.15 EUR`, the baseline's before the best's; a dash for an unknown one."""
    kinds = ("baseline", "best") if row["best_trial"] != 0 else ("best",)
    costs = [row[f"{kind}_cost_per_million_samples"] for kind in kinds]
    if not any(costs):
        return "-"
    return f"{' -> '.join('-' if cost is None else three_digits(cost) for cost in costs)} {row['currency']}".strip()


def compared_page(rows: Sequence[StudyRow], picture: str) -> str:
    """compare.md: the figures, the picture, and a list of the studies."""
    lines = ["# Studies side by side", "", *markdown_table(figures(rows)), ""]
    lines += ["Speeds in samples / second, with 95% intervals.", "", f"![Speed and cost of each study]({picture})", ""]
    for number, row in enumerate(rows, start=1):
        name, *sentences = map(markdown_text, about(row))
        lines += [f"{number}. **{name}**", *(f"   - {sentence}" for sentence in sentences)]
    return "\n".join(lines) + "\n"


ROLES = {"baseline": "muted", "best": "p3"}


def compared_svg(rows: Sequence[StudyRow]) -> str:
    """Two bars a study; on a second side costs if a price is given, unless they are in several currencies."""
    speeds = {role: [interval_of(row, f"{kind}_samples_per_second") for row in rows] for kind, role in ROLES.items()}
    costs = {role: [row[f"{kind}_cost_per_million_samples"] for row in rows] for kind, role in ROLES.items()}
    missing = [row["why_no_best"] for row in rows]
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
