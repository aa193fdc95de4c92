"""The table that a page shows: what is rounded and how, what is shown at first, in which order."""

import pytest

from autotune.core import Outcome, Trial
from autotune.report.page_table import LONGEST, Cell, Table, table_of
from autotune.report.table import frame
from tests.makers import MIB, configuration, ended, out_of_memory, trial, warned

SLOW, FAST = configuration(8), configuration(16, precision="bf16")
TRIALS = [
    trial(0, 12.3456, 300 * MIB, of=SLOW, probe_seconds=0.01234),
    trial(1, 4000.0, of=FAST, probe_seconds=123.456),
    Trial(2, SLOW, out_of_memory(SLOW)),
]


def usual(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.usual]


def test_all_columns_of_the_frame_are_there_and_those_shown_at_first_say_something() -> None:
    table = table_of(TRIALS)
    assert [column.name for column in table.columns] == list(frame(TRIALS).columns)
    assert usual(table) == [
        *("number", "outcome", "speedup", "samples_per_second", "peak_bytes"),
        *("micro_batch_size", "gradient_accumulation_steps", "precision", "probe_seconds", "failure_reason"),
    ]
    assert "warnings" in usual(table_of([trial(0, observed_warnings=warned("throttled"))]))
    assert not {"outcome", "failure_reason", "data_wait_share"} & set(usual(table_of([trial(0)]))), (
        "nothing failed or waited"
    )


@pytest.mark.parametrize(
    ("number", "column", "text", "value"),
    [
        (0, "number", "0", None),
        (2, "outcome", "out of memory", "out_of_memory"),
        (0, "fits", "yes", "True"),
        (0, "peak_bytes", "300 MiB", str(300 * MIB)),
        (2, "samples_per_second", "", None),
        (0, "probe_seconds", "12.3 ms", "0.01234"),
        (1, "probe_seconds", "123.5 s", "123.456"),
        (0, "data_wait_share", "0.0%", "0.0"),
    ],
)
def test_people_read_units_and_machines_the_whole(number: int, column: str, text: str, value: str | None) -> None:
    assert table_of(TRIALS).cell(number, column) == Cell(text, value)


def test_a_speed_is_shown_with_its_interval_and_a_long_reason_is_cut() -> None:
    speed = TRIALS[0].samples_per_second
    assert speed is not None
    shown = table_of(TRIALS).cell(0, "samples_per_second")
    assert shown.text.startswith("12.35 ±")
    assert shown.value == repr(speed.value)
    reason = table_of([Trial(0, SLOW, ended(Outcome.CRASHED, reason="x" * 300))]).cell(0, "failure_reason")
    assert reason == Cell("x" * LONGEST + "…", "x" * 300)


def test_headings_have_no_unit_and_speeds_sort_from_the_fastest() -> None:
    table = table_of(TRIALS)
    columns = {column.name: column for column in table.columns}
    titles = [columns[name].title for name in ("number", "samples_per_second", "peak_bytes", "step_time_s")]
    assert titles == ["trial", "samples/s", "peak", "step time"]
    assert [column.title for column in table.groups["Result"]][:4] == ["trial", "rank", "outcome", "fits"]
    assert "workers" in [column.name for column in table.groups["Settings"]]
    assert [column for columns in table.groups.values() for column in columns] == [*table.columns], "in the same order"
    assert len({column.title for column in columns.values()}) == len(columns), "no two are called the same"
    assert columns["joules_per_sample"].title == "J/sample"
    numeric = [columns[name].numeric for name in ("workers", "peak_bytes", "precision")]
    assert numeric == [True, True, False]
    assert columns["tokens_per_second"].falls
    assert not columns["step_time_s"].falls
