"""Several studies in words: a numbered table of figures, what each study was, and compare.md."""

from collections.abc import Sequence
from typing import Any

from autotune.core.units import format_bytes, format_interval, three_digits
from autotune.report.columns import FIRST
from autotune.report.markdown import markdown_text

Row = dict[str, Any]
"""A row of `autotune.commands.compare.columns` as plain values, None where one is missing."""


def head(rows: Sequence[Row]) -> list[str]:
    """The headings of `figures`."""
    cost = ["cost of a million samples"] if _priced(rows) else []
    return ["#", "baseline", "best", "speed-up", "peak", *(["MFU"] if _used(rows) else []), *cost]


def figures(rows: Sequence[Row]) -> list[list[str]]:
    """Number, speeds (samples / second ± half their 95 % interval), speed-up, peak; MFU and cost where they are known."""
    priced, used = _priced(rows), _used(rows)
    return [
        [
            str(number),
            *(_with_interval(row, f"{kind}_samples_per_second") for kind in ("baseline", "best")),
            _range(row, "speedup"),
            format_bytes(row["best_peak_bytes"]),
            *(["-" if row["best_mfu"] is None else f"{row['best_mfu']:.1%}"] if used else []),
            *([_cost(row)] if priced else []),
        ]
        for number, row in enumerate(rows, start=1)
    ]


def about(row: Row) -> list[str]:
    """What a study was, what it found, and how it stands beside the others; its name first."""
    length = f", {row['sequence_length']} tokens" if row["sequence_length"] else ""
    found = f"{row['best_unlike_baseline']}{'' if row['confirmed'] else '; not confirmed'}"
    said = [
        row["study"],
        f"{row['model']}, {row['task']}{length}, global batch {row['global_batch_size']}",
        f"{row['device']} ({row['device_name']}), {row['versions']}",
        f"best: {found if row['best_trial'] is not None else 'nothing fits'}",
        f"{row['trials']} trial(s), {row['probes']} probe(s)",
    ]
    if row["why_no_speedup"]:
        said.append(f"{'speed-up' if row['speedup'] is not None else 'no speed-up'}: {row['why_no_speedup']}")
    if row["compared_with"]:
        said.append(f"{_range(row, 'times_as_fast')} as fast as {row['compared_with']}")
    if row["why_not_compared"] not in ("", FIRST):
        said.append(f"compared with no other: {row['why_not_compared']}")
    return said + [f"warning: {warning}" for warning in row["warnings"].split("; ") if warning]


def compared_page(rows: Sequence[Row], picture: str) -> str:
    """compare.md: the figures, the picture, and what each study was."""
    cells = [head(rows), ["---"] * len(head(rows)), *figures(rows)]
    lines = ["# Studies side by side", "", *(f"| {' | '.join(line)} |" for line in cells), ""]
    lines += ["Speeds in samples / second, with 95 % intervals.", "", f"![Speed and cost of each study]({picture})", ""]
    for number, row in enumerate(rows, start=1):
        name, *said = (markdown_text(line) for line in about(row))
        lines += [f"{number}. **{name}**", *(f"   - {line}" for line in said)]
    return "\n".join(lines) + "\n"


def _priced(rows: Sequence[Row]) -> bool:
    return any(row["price_per_hour"] is not None for row in rows)


def _used(rows: Sequence[Row]) -> bool:
    return any(row["best_mfu"] is not None for row in rows)


def _with_interval(row: Row, name: str) -> str:
    return format_interval(row[name], row[f"{name}_low"], row[f"{name}_high"]) if row[name] is not None else "-"


def _range(row: Row, name: str) -> str:
    """`1.26x (1.19 to 1.33)`, or a dash."""
    if row[name] is None:
        return "-"
    return f"{row[name]:.2f}x ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})"


def _cost(row: Row) -> str:
    """`2.71 -> 2.15 EUR`, the baseline's before the best's; a dash for what is not known."""
    costs = [row[f"{kind}_cost_per_million_samples"] for kind in ("baseline", "best")]
    if costs == [None, None]:
        return "-"
    return f"{' -> '.join('-' if cost is None else three_digits(cost) for cost in costs)} {row['currency']}".strip()
