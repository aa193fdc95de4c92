"""Table of trials as a page shows it: every column of trials.csv, rounded for people, exact for machines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import word
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_interval
from autotune.judge.constants import MAX_DISPLAY_WIDTH
from autotune.report.columns import BYTES, GROUPS, SECONDS, SHARE, SPEED, TIMES, TOKENS, Column, trial_columns
from autotune.report.formats import plain_rows
from autotune.report.table import frame
from autotune.space.utilization import Utilization

USUAL = (
    *("number", "speedup", "samples_per_second", "peak_bytes", "micro_batch_size", "gradient_accumulation_steps"),
    *("mfu", "data_wait_share", "probe_seconds", "warnings"),
)
"""Columns that are shown at first if they hold anything, besides the settings that differ between trials."""

WHERE_FAILED = ("outcome", "failure_reason")
"""Columns that are shown at first if a trial did not complete."""

LONGEST = 160
"""Characters of a text that a cell shows."""


@dataclass(frozen=True)
class Heading:
    """The head of a column of the page's table."""

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

    text: str  # for people; empty if unknown
    value: str | None = None  # as trials.csv has it; None if that is the text


@dataclass(frozen=True)
class Table:
    """The page's table."""

    columns: Sequence[Heading]  # in the order in which they are shown
    rows: Sequence[tuple[Trial, Sequence[Cell]]]

    @property
    def groups(self) -> Mapping[str, Sequence[Heading]]:
        """Group -> its columns, in their order."""
        return {group: [column for column in self.columns if column.group == group] for group in GROUPS}

    def cell(self, number: int, column: str) -> Cell:
        """Cells of one trial; raises KeyError if there is none."""
        cells = {trial.number: cells for trial, cells in self.rows}[number]
        return dict(zip((shown.name for shown in self.columns), cells, strict=True))[column]


def table_of(
    trials: Sequence[Trial],
    utilization: Mapping[int, Utilization] | None = None,
    objective: str = "samples_per_second",
    refuted: Trial | None = None,
) -> Table:
    """The table of these trials, and how much of the device each uses.

    Columns, their order and values are those of `report.table.frame`.
    """
    table = frame(trials, utilization, objective, refuted)
    groups = {column.name: group for group, columns in GROUPS.items() for column in columns}
    columns = trial_columns(name for name in table.columns if name not in groups)
    rows = plain_rows(table)
    usual = {*USUAL, *(WHERE_FAILED if any(row["outcome"] != "completed" for row in rows) else ())}
    headings = [
        _heading(column, groups.get(column.name, "Settings"), [row[column.name] for row in rows], column.name in usual)
        for column in columns
    ]
    cells = [[_cell(column, row) for column in columns] for row in rows]
    return Table(headings, list(zip(trials, cells, strict=True)))


def _heading(column: Column, group: str, values: list[Any], usual: bool) -> Heading:
    has_values = any(value not in (None, "", 0.0) for value in values) or column.name == "number"
    return Heading(
        name=column.name,
        title=column.heading,
        numeric=column.is_number,
        falls=column.unit in (SPEED, TOKENS, TIMES),
        long=group == "Why",
        usual=(usual and has_values) or (group == "Settings" and len(set(values)) > 1),
        group=group,
    )


def _cell(column: Column, row: Mapping[str, Any]) -> Cell:
    name, value = column.name, row[column.name]
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
            f"{value:.2f}×" if row[f"{name}_high"] - row[f"{name}_low"] <= MAX_DISPLAY_WIDTH * value else "?",
            repr(value),
        )
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    text = _number(column.unit, value) if low is None or high is None else format_interval(value, low, high)
    return Cell(text, None if repr(value) == text else repr(value))


def _number(unit: str, value: float) -> str:
    """The number with its unit."""
    if not math.isfinite(value):
        return str(value)
    if unit == BYTES:
        return format_bytes(value)
    if unit == SHARE:
        return f"{value:.1%}"
    if unit == SECONDS:
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"
    return str(value) if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
