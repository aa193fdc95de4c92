"""A forecast as a table for people: peaks by micro-batch and settings, what fits, and what the memory is for."""

from collections.abc import Iterable
from typing import Any

from autotune.core.units import format_bytes, format_parameters

WIDEST = 9
"""Micro-batch sizes in one table: more would not fit a line."""

PARTS = ("weights", "gradients", "optimizer_states", "activations", "temporary", "context")


def forecast_lines(told: dict[str, Any]) -> list[str]:
    """The lines of `Forecast.to_dict()`."""
    length = f", {told['sequence_length']} tokens" if told["sequence_length"] else ""
    head = f"{told['model']} ({told['task']}, {told['auto_class']}{length}), {format_parameters(told['parameters'])} parameters, "
    lines = [f"{head}global batch {told['global_batch_size']}"]
    if told["limit_bytes"] is not None:
        where = f"{told['card']['name']}: " if told["card"] else ""
        share = f"less {told['headroom']:.0%} headroom"
        lines.append(f"{where}{format_bytes(told['limit_bytes'])} {share}; * does not fit")
    lines += ["", "Peak in GiB by micro-batch size:", "", *_peaks(told), ""]
    lines += ["What the memory is for, GiB, at the largest micro-batch that fits:", "", *_splits(told)]
    if told["limit_bytes"] is None:
        lines += ["", "What fits on which card:", "", *_cards(told)]
    lines += ["", *(f"note: {note}" for note in told["notes"])]
    return lines


def _settings(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple("/".join(map(str, values)) for values in row["levers"].values())


def _by_settings(told: dict[str, Any]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    grouped: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in told["rows"]:
        grouped.setdefault(_settings(row), []).append(row)
    return grouped


def _names(told: dict[str, Any]) -> list[str]:
    return list(told["rows"][0]["levers"]) if told["rows"] else []


def _peaks(told: dict[str, Any]) -> list[str]:
    sizes = sorted({row["micro_batch_size"] for row in told["rows"]})
    shown = sizes if len(sizes) <= WIDEST else [*sizes[: WIDEST - 1], sizes[-1]]
    table = [[*_names(told), *map(str, shown)]]
    for settings, rows in _by_settings(told).items():
        at = {row["micro_batch_size"]: row for row in rows}
        table.append([*settings, *(_cell(at.get(size)) for size in shown)])
    return _aligned(table, len(_names(told)))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None or "peak_bytes" not in row:
        return "-"
    return f"{_gib(row['peak_bytes'])}{'*' if row['fits'] is False else ''}"


def _splits(told: dict[str, Any]) -> list[str]:
    headings = [one.replace("_", " ") for one in PARTS]
    table = [[*_names(told), "micro-batch", "peak", *headings, "cached", "at"]]
    reasons = []
    for settings, rows in _by_settings(told).items():
        known = [row for row in rows if "peak_bytes" in row]
        if not known:
            reasons.append(f"{', '.join(settings)}: {rows[0]['reason']}")
            continue
        row = max((row for row in known if row["fits"] is not False), key=_size, default=min(known, key=_size))
        cached = row["peak_reserved_bytes"] - row["peak_allocated_bytes"]
        parts = [_gib(row["split"][one]) for one in PARTS]
        size = f"{row['micro_batch_size']} x {row['gradient_accumulation_steps']}"
        table.append([*settings, size, _cell(row), *parts, _gib(cached), row["where"]])
    return [*_aligned(table, len(_names(told))), *(f"not traced: {reason}" for reason in reasons)]


def _cards(told: dict[str, Any]) -> list[str]:
    from autotune.core.gpus import CARDS

    table = [["card", "memory", "fit", "largest micro-batch", "with"]]
    for name, card in CARDS.items():
        fitting = [row for row in told["rows"] if name in row["cards"]]
        best = max(fitting, key=_size, default=None)
        told_best = [str(best["micro_batch_size"]), ", ".join(_settings(best))] if best else ["-", ""]
        table.append([name, format_bytes(card.memory_bytes), f"{len(fitting)} of {len(told['rows'])}", *told_best])
    return _aligned(table, 1)


def _size(row: dict[str, Any]) -> int:
    return int(row["micro_batch_size"])


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _aligned(table: Iterable[list[str]], left: int) -> list[str]:
    """Columns as wide as their widest cell; the first `left` and the last stand left, numbers right."""
    rows = list(table)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width)
            if place < left or (place == len(widths) - 1 and not cell[:1].isdigit())
            else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
