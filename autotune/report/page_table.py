"""The table of trials as a page shows it: every column of trials.csv, rounded for people, whole for machines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.configuration import word
from autotune.core.trial import Trial
from autotune.core.units import format_bytes, format_interval
from autotune.report.formats import plain_rows
from autotune.report.table import frame
from autotune.space.utilization import Utilization

USUAL = (
    *("number", "outcome", "micro_batch_size", "gradient_accumulation_steps"),
    *("samples_per_second", "mfu", "peak_bytes", "data_wait_share", "probe_seconds", "reason", "warnings"),
)
"""Columns that are shown at first where they say anything, beside the settings that differ between trials."""

LAST = ("where", "reason", "warnings", "repeated_because", "barred")
"""Long texts, which stand behind the numbers."""

LONGEST = 160
"""Letters of a text that a cell shows."""


@dataclass(frozen=True)
class Column:
    """name: as in trials.csv. title: for people. numeric: sorted as numbers; falls: from the largest first.

    long: its texts are sentences. usual: shown at first.
    """

    name: str
    title: str
    numeric: bool
    falls: bool
    long: bool
    usual: bool


@dataclass(frozen=True)
class Cell:
    """text: as people read it, empty where unknown. value: as trials.csv has it; None where that is the text."""

    text: str
    value: str | None = None


@dataclass(frozen=True)
class Table:
    """columns: in the order in which they are shown; rows: (trial, its cells), one a trial."""

    columns: Sequence[Column]
    rows: Sequence[tuple[Trial, Sequence[Cell]]]

    def cell(self, number: int, column: str) -> Cell:
        """Of one trial; raises KeyError where there is none."""
        places = {one.name: place for place, one in enumerate(self.columns)}
        cells = {trial.number: cells for trial, cells in self.rows}
        return cells[number][places[column]]


def table_of(trials: Sequence[Trial], utilization: Mapping[int, Utilization] | None = None) -> Table:
    """The table of these trials, and how much of the device each uses; its values are those of `report.table.frame`."""
    whole = frame(trials, utilization)
    settings = {"data_parallel_size", *(name for trial in trials for name, _ in trial.configuration.settings)}
    said = list(whole.columns[: whole.columns.get_loc("samples_per_second")])
    order = dict.fromkeys([*said, *USUAL, *whole.columns])
    plain = plain_rows(whole)
    columns = [
        _column(name, str(whole[name].dtype), [row[name] for row in plain], name in settings)
        for name in [*(name for name in order if name not in LAST), *LAST]
    ]
    rows = [[_cell(column.name, row[column.name], row) for column in columns] for row in plain]
    return Table(columns, list(zip(trials, rows, strict=True)))


def _column(name: str, dtype: str, values: list[Any], setting: bool) -> Column:
    says_something = any(value not in (None, "") for value in values)
    return Column(
        name=name,
        title=_title(name),
        numeric=dtype.lower().startswith(("int", "float")),
        falls="per_second" in name,
        long=name in LAST,
        usual=(name in USUAL and says_something) or (setting and len(set(values)) > 1),
    )


def _title(name: str) -> str:
    """`samples/s`, `peak`, `step time`: the unit stands with each value."""
    if name == "number":
        return "trial"
    if name == "mfu":
        return "MFU"
    said = name.replace("_per_second", "/s").replace("_per_", "/").replace("joules/", "J/")
    for unit in ("_bytes", "_s", "_seconds"):
        said = said.removesuffix(unit)
    return said.replace("_", " ")


def _cell(name: str, value: Any, row: Mapping[str, Any]) -> Cell:
    if value is None:
        return Cell("")
    if isinstance(value, bool):
        return Cell(word(value), str(value))
    if name == "outcome":
        return Cell(value.replace("_", " "), value if "_" in value else None)
    if isinstance(value, str):
        return Cell(value if len(value) <= LONGEST else f"{value[:LONGEST]}…", value if len(value) > LONGEST else None)
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    text = _number(name, value) if low is None or high is None else format_interval(value, low, high)
    whole = repr(value)
    return Cell(text, None if whole == text else whole)


def _number(name: str, value: float) -> str:
    """The number with its unit, which the column's name ends in."""
    if not math.isfinite(value):
        return str(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_share") or name == "mfu":
        return f"{value:.1%}"
    if name.endswith(("_s", "_seconds")):
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"
    return str(value) if isinstance(value, int) else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
