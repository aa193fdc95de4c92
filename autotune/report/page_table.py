"""Table of trials as a page shows it: every column of trials.csv, rounded for people, exact for machines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import word
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_interval
from autotune.report.columns import GROUPS
from autotune.report.formats import plain_rows
from autotune.report.table import frame
from autotune.space.utilization import Utilization
from autotune.study.objective import TOLD_WIDTH

USUAL = (
    *("number", "speedup", "samples_per_second", "peak_bytes", "micro_batch_size", "gradient_accumulation_steps"),
    *("mfu", "data_wait_share", "probe_seconds", "warnings"),
)
"""Columns that are shown at first where they hold anything, besides the settings that differ between trials."""

WHERE_FAILED = ("outcome", "failure_reason")
"""Columns that are shown at first where a trial did not complete."""

LONG = {column.name for column in GROUPS["Why"]}
"""Columns of sentences."""

TITLES = {
    "number": "trial",
    "speedup": "vs yours",
    "mfu": "MFU",
    "micro_batch_size": "micro-batch",
    "gradient_accumulation_steps": "accumulation",
}

LONGEST = 160
"""Characters of a text that a cell shows."""


@dataclass(frozen=True)
class Column:
    """A column of the page's table."""

    name: str  # as in trials.csv
    title: str  # for people
    numeric: bool  # sorted as numbers
    falls: bool  # sorted from the largest first
    long: bool  # its texts are sentences
    usual: bool  # shown at first
    group: str  # of columns.GROUPS


@dataclass(frozen=True)
class Cell:
    """A cell of the page's table."""

    text: str  # for people; empty where unknown
    value: str | None = None  # as trials.csv has it; None where that is the text


@dataclass(frozen=True)
class Table:
    """The page's table."""

    columns: Sequence[Column]  # in the order in which they are shown
    rows: Sequence[tuple[Trial, Sequence[Cell]]]

    @property
    def groups(self) -> Mapping[str, Sequence[Column]]:
        """Group -> its columns, in their order."""
        return {group: [column for column in self.columns if column.group == group] for group in GROUPS}

    def cell(self, number: int, column: str) -> Cell:
        """Of one trial; raises KeyError where there is none."""
        cells = {trial.number: cells for trial, cells in self.rows}[number]
        return dict(zip((shown.name for shown in self.columns), cells, strict=True))[column]


def table_of(
    trials: Sequence[Trial],
    utilization: Mapping[int, Utilization] | None = None,
    objective: str = "samples_per_second",
) -> Table:
    """The table of these trials, and how much of the device each uses: columns, their order and values are those of
    `report.table.frame`."""
    table = frame(trials, utilization, objective)
    groups = {column.name: group for group, columns in GROUPS.items() for column in columns}
    rows = plain_rows(table)
    usual = {*USUAL, *(WHERE_FAILED if any(row["outcome"] != "completed" for row in rows) else ())}
    columns = [
        _column(name, str(table[name].dtype), [row[name] for row in rows], groups.get(name, "Settings"), name in usual)
        for name in table.columns
    ]
    cells = [[_cell(column.name, row[column.name], row) for column in columns] for row in rows]
    return Table(columns, list(zip(trials, cells, strict=True)))


def _column(name: str, dtype: str, values: list[Any], group: str, usual: bool) -> Column:
    has_values = any(value not in (None, "", 0.0) for value in values) or name == "number"
    return Column(
        name=name,
        title=_title(name),
        numeric=dtype.lower().startswith(("int", "float")),
        falls="per_second" in name or name.startswith("speedup"),
        long=name in LONG,
        usual=(usual and has_values) or (group == "Settings" and len(set(values)) > 1),
        group=group,
    )


def _title(name: str) -> str:
    """`samples/s`, `peak`, `step time`: the unit is in each cell."""
    if name in TITLES:
        return TITLES[name]
    title = name.replace("_per_second", "/s").replace("_per_", "/").replace("joules/", "J/")
    for unit in ("_bytes", "_s", "_seconds"):
        title = title.removesuffix(unit)
    return title.replace("_", " ")


def _cell(name: str, value: Any, row: Mapping[str, Any]) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, bool):
        return Cell(word(value), str(value))
    if name == "outcome":
        return Cell(value.replace("_", " "), value if "_" in value else None)
    if isinstance(value, str):
        return Cell(value if len(value) <= LONGEST else f"{value[:LONGEST]}…", value if len(value) > LONGEST else None)
    if name == "speedup":
        return Cell(
            f"{value:.2f}×" if row[f"{name}_high"] - row[f"{name}_low"] <= TOLD_WIDTH * value else "?", repr(value)
        )
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    text = _number(name, value) if low is None or high is None else format_interval(value, low, high)
    return Cell(text, None if repr(value) == text else repr(value))


def _number(name: str, value: float) -> str:
    """The number with the unit that the column's name ends in."""
    if not math.isfinite(value):
        return str(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_share") or name == "mfu":
        return f"{value:.1%}"
    if name.endswith(("_s", "_seconds")):
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"
    return str(value) if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
