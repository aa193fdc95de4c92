"""Text of a memory forecast: peaks by micro-batch size and settings, what fits, and what the memory is for."""

from typing import Any

from autotune.commands.layout import aligned
from autotune.core.gpus import CARDS
from autotune.core.units import format_bytes, format_parameters

WIDEST = 9
"""Micro-batch sizes in one table: more would not fit a line."""

PARTS = ("weights", "gradients", "optimizer_states", "activations", "temporary", "context")

Row = dict[str, Any]


def forecast_lines(forecast: dict[str, Any]) -> list[str]:
    """The lines of `Forecast.to_dict()`."""
    limit, rows = forecast["limit_bytes"], forecast["rows"]
    length = f", {forecast['sequence_length']} tokens" if forecast["sequence_length"] else ""
    model = f"{forecast['model']} ({forecast['task']}, {forecast['auto_class']}{length})"
    size = f"{format_parameters(forecast['parameters'])} parameters, global batch {forecast['global_batch_size']}"
    lines = [f"{model}, {size}"]
    if limit is not None:
        device = f"{forecast['card']['name']}: " if forecast["card"] else ""
        lines.append(f"{device}{format_bytes(limit)} less {forecast['headroom']:.0%} headroom; * does not fit")
    names = list(rows[0]["settings"]) if rows else []
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(_settings(row), []).append(row)
    lines += ["", "Peak in GiB by micro-batch size:", "", *_peaks(names, groups), ""]
    lines += ["What the memory is for, GiB, at the largest micro-batch that fits:", "", *_splits(names, groups)]
    if limit is None:
        lines += ["", "What fits on which GPU:", "", *_cards(rows)]
    return [*lines, "", *(f"note: {note}" for note in forecast["notes"])]


def _settings(row: Row) -> tuple[str, ...]:
    return tuple("/".join(map(str, values)) for values in row["settings"].values())


def _peaks(names: list[str], groups: dict[tuple[str, ...], list[Row]]) -> list[str]:
    sizes = sorted({row["micro_batch_size"] for rows in groups.values() for row in rows})
    shown = sizes if len(sizes) <= WIDEST else [*sizes[: WIDEST - 1], sizes[-1]]
    table = [[*names, *map(str, shown)]]
    for settings, rows in groups.items():
        by_size = {row["micro_batch_size"]: row for row in rows}
        table.append([*settings, *(_peak(by_size.get(size)) for size in shown)])
    return aligned(table, len(names))


def _peak(row: Row | None) -> str:
    if row is None or "peak_bytes" not in row:
        return "-"
    return f"{_gib(row['peak_bytes'])}{'*' if row['fits'] is False else ''}"


def _splits(names: list[str], groups: dict[tuple[str, ...], list[Row]]) -> list[str]:
    headings = [part.replace("_", " ") for part in PARTS]
    table = [[*names, "micro-batch", "peak", *headings, "cached", "at"]]
    reasons = []
    for settings, rows in groups.items():
        with_peak = [row for row in rows if "peak_bytes" in row]
        if not with_peak:
            reasons.append(f"not traced: {', '.join(settings)}: {rows[0]['reason']}")
            continue
        fitting = [row for row in with_peak if row["fits"] is not False]
        row = max(fitting, key=_size, default=min(with_peak, key=_size))
        parts = [_gib(row["split"][part]) for part in PARTS]
        size = f"{row['micro_batch_size']} x {row['gradient_accumulation_steps']}"
        cached = _gib(row["peak_reserved_bytes"] - row["peak_allocated_bytes"])
        table.append([*settings, size, _peak(row), *parts, cached, row["where"]])
    return [*aligned(table, len(names)), *reasons]


def _cards(rows: list[Row]) -> list[str]:
    table = [["GPU", "memory", "fit", "largest micro-batch", "with"]]
    for name, card in CARDS.items():
        fitting = [row for row in rows if name in row["cards"]]
        best = max(fitting, key=_size, default=None)
        largest = [str(_size(best)), ", ".join(_settings(best))] if best else ["-", ""]
        table.append([name, format_bytes(card.memory_bytes), f"{len(fitting)} of {len(rows)}", *largest])
    return aligned(table, 1)


def _size(row: Row) -> int:
    return int(row["micro_batch_size"])


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"
