"""Text of a memory forecast: peaks by micro-batch size and settings, what fits, and what the memory is for."""

from typing import Any

from autotune.commands.layout import aligned
from autotune.core.gpus import CARDS
from autotune.core.units import broken, format_bytes, format_parameters
from autotune.memory.estimate import OPTIMIZER_STEP
from autotune.report.markdown import WIDTH, wrapped

WIDEST = 8
"""Micro-batch sizes in one table: more would not fit a line."""

PARTS = {
    "weights": "weights",
    "gradients": "grads",
    "optimizer_states": "states",
    "activations": "activ.",
    "temporary": "temp.",
    "communication": "comm.",
    "context": "context",
}
"""Part of a peak -> its heading; communication is left out if all have one rank."""

PeakRow = dict[str, Any]


def forecast_lines(forecast: dict[str, Any]) -> list[str]:
    """The lines of `Forecast.to_dict()`."""
    limit, rows = forecast["limit_bytes"], forecast["rows"]
    length = f", {forecast['sequence_length']} tokens" if forecast["sequence_length"] else ""
    model = f"{forecast['model']} ({forecast['task']}, {forecast['auto_class']}{length})"
    size = f"{format_parameters(forecast['parameters'])} parameters, global batch {forecast['global_batch_size']}"
    lines = [f"{model}, {size}"]
    fitting = [row for row in rows if row["fits"] is not False and "peak_bytes" in row]
    if limit is not None:
        device = f"{forecast['card']['name']}: " if forecast["card"] else ""
        lines.append(f"{device}{format_bytes(limit)} less {forecast['headroom']:.0%} headroom; * does not fit")
    if not fitting and (peaks := [row["peak_bytes"] for row in rows if "peak_bytes" in row]):
        lines.append(f"Nothing fits: the smallest needs {format_bytes(min(peaks))}.")
    lines = [line for text in lines for line in wrapped(text)]
    names = list(rows[0]["settings"]) if rows else []
    groups: dict[tuple[str, ...], list[PeakRow]] = {}
    for row in rows:
        groups.setdefault(_settings(row), []).append(row)
    lines += ["", "Peak in GiB by micro-batch size:", "", *_peaks(names, groups), ""]
    size = "largest micro-batch that fits" if fitting else "smallest micro-batch"
    lines += [f"What the memory is for, GiB, at the {size}:", "", *_splits(names, groups)]
    if limit is None:
        lines += ["", "What fits on which GPU:", "", *_cards(rows)]
    notes = [note["text"] for note in forecast["notes"]]
    notes += [f"{row['setting']} {row['value']}: {row['reason']['text']}" for row in forecast["ruled_out"]]
    return [*lines, "", *(line for note in notes for line in wrapped(f"note: {note}"))]


def _settings(row: PeakRow) -> tuple[str, ...]:
    return tuple("/".join(map(str, values)) for values in row["settings"].values())


def _peaks(names: list[str], groups: dict[tuple[str, ...], list[PeakRow]]) -> list[str]:
    sizes = sorted({row["micro_batch_size"] for rows in groups.values() for row in rows})
    shown = sizes if len(sizes) <= WIDEST else [*sizes[: WIDEST - 1], sizes[-1]]
    cells = {}
    for settings, rows in groups.items():
        by_size = {row["micro_batch_size"]: row for row in rows}
        cells[settings] = [_peak(by_size.get(size)) for size in shown]
    return _table(names, list(map(str, shown)), cells)


def _table(names: list[str], head: list[str], cells: dict[tuple[str, ...], list[str]]) -> list[str]:
    """A row of cells for each combination of settings, within WIDTH columns.

    Settings with one value are named once, and the others have lines of their own if their columns do not fit.
    """
    varying = [index for index in range(len(names)) if len({settings[index] for settings in cells}) > 1]
    same = [f"{name} {next(iter(cells))[index]}" for index, name in enumerate(names) if index not in varying]
    lines = wrapped(f"All with {', '.join(same)}.", "  ") if same and cells else []
    rows = [([settings[index] for index in varying], row) for settings, row in cells.items()]
    table = aligned(
        [[*(names[index] for index in varying), *head], *([*words, *row] for words, row in rows)], len(varying)
    )
    if max(map(len, table)) <= WIDTH:
        return [*lines, *table]
    first, *numbers = aligned([head, *(row for _, row in rows)], 0)
    lines += [first]
    for (words, _), line in zip(rows, numbers, strict=True):
        text = ", ".join(f"{names[index]} {word}" for index, word in zip(varying, words, strict=True))
        lines += [*wrapped(text, "  ", "    "), line]
    return lines


def _peak(row: PeakRow | None) -> str:
    if row is None or "peak_bytes" not in row:
        return "-"
    return f"{_gib(row['peak_bytes'])}{'*' if row['fits'] is False else ''}"


def _splits(names: list[str], groups: dict[tuple[str, ...], list[PeakRow]]) -> list[str]:
    table, reasons = {}, []
    peaks = [row for rows in groups.values() for row in rows if "peak_bytes" in row]
    shown = [part for part in PARTS if part != "communication" or any(row["split"][part] for row in peaks)]
    for settings, rows in groups.items():
        with_peak = [row for row in rows if "peak_bytes" in row]
        if not with_peak:
            reasons += wrapped(f"not traced: {', '.join(settings)}: {rows[0]['reason']}", "  ", "    ")
            continue
        fitting = [row for row in with_peak if row["fits"] is not False]
        row = max(fitting, key=_size, default=min(with_peak, key=_size))
        parts = [_gib(row["split"][part]) for part in shown]
        size = f"{row['micro_batch_size']} x {row['gradient_accumulation_steps']}"
        cached = _gib(row["peak_reserved_bytes"] - row["peak_allocated_bytes"])
        table[settings] = [size, _peak(row), *parts, cached, "step" if row["where"] == OPTIMIZER_STEP else row["where"]]
    return [*_table(names, ["sizes", "peak", *(PARTS[part] for part in shown), "cached", "at"], table), *reasons]


def _cards(rows: list[PeakRow]) -> list[str]:
    table = [["GPU", "memory", "fit", "largest micro-batch", "with"]]
    for name, card in CARDS.items():
        fitting = [row for row in rows if name in row["cards"]]
        best = max(fitting, key=_size, default=None)
        largest = [str(_size(best)), ", ".join(_settings(best))] if best else ["-", ""]
        table.append([name, format_bytes(card.memory_bytes), f"{len(fitting)} of {len(rows)}", *largest])
    return [part for line in aligned(table, 1) for part in broken(line, WIDTH, "", " " * 6)]


def _size(row: PeakRow) -> int:
    return int(row["micro_batch_size"])


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"
