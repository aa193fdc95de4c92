"""The table that a page shows: what is rounded and how, what is shown at first, in which order."""

import pytest

from autotune.core import Outcome, Trial
from autotune.report.page_table import LONGEST, USUAL, Table, table_of
from autotune.report.table import frame
from tests.makers import MIB, configuration, ended, out_of_memory, trial

SLOW, FAST = configuration(8), configuration(16, precision="bf16")
TRIALS = [
    trial(0, 12.3456, 300 * MIB, of=SLOW, probe_seconds=0.01234),
    trial(1, 4000.0, of=FAST, probe_seconds=123.456),
    Trial(2, SLOW, out_of_memory(SLOW)),
]


def usual(table: Table) -> list[str]:
    return [column.name for column in table.columns if column.usual]


def test_every_column_of_the_frame_is_there_once() -> None:
    names = [column.name for column in table_of(TRIALS).columns]
    assert sorted(names) == sorted(frame(TRIALS).columns)
    assert names[0] == "number"


def test_shown_at_first_is_what_says_something_and_the_settings_that_differ() -> None:
    shown = usual(table_of(TRIALS))
    assert shown == [
        *("number", "outcome", "micro_batch_size", "gradient_accumulation_steps", "precision"),
        *("samples_per_second", "peak_bytes", "data_wait_share", "probe_seconds", "reason"),
    ]
    assert set(shown) - {"precision"} < set(USUAL)
    assert "warnings" in usual(table_of([trial(0, observed_warnings=("throttled",))]))
    assert "reason" not in usual(table_of([trial(0)]))


@pytest.mark.parametrize(
    ("number", "column", "text", "value"),
    [
        (0, "number", "0", None),
        (0, "outcome", "completed", None),
        (2, "outcome", "out of memory", "out_of_memory"),
        (0, "feasible", "yes", "True"),
        (0, "peak_bytes", "300 MiB", str(300 * MIB)),
        (2, "samples_per_second", "", None),
        (0, "probe_seconds", "12.3 ms", "0.01234"),
        (1, "probe_seconds", "123.5 s", "123.456"),
        (0, "data_wait_share", "0.0%", "0.0"),
        (0, "where", "", None),
    ],
)
def test_people_read_units_and_machines_the_whole(number: int, column: str, text: str, value: str | None) -> None:
    cell = table_of(TRIALS).cell(number, column)
    assert (cell.text, cell.value) == (text, value)


def test_a_speed_is_shown_with_its_interval() -> None:
    speed = TRIALS[0].samples_per_second
    assert speed is not None
    cell = table_of(TRIALS).cell(0, "samples_per_second")
    assert cell.text.startswith("12.3")
    assert "±" in cell.text
    assert cell.value == repr(speed.value)


def test_a_long_reason_is_cut_for_people_alone() -> None:
    cell = table_of([Trial(0, SLOW, ended(Outcome.CRASHED, reason="x" * 300))]).cell(0, "reason")
    assert cell.text == "x" * LONGEST + "…"
    assert cell.value == "x" * 300


def test_a_heading_says_the_column_without_its_unit() -> None:
    titles = {column.name: column.title for column in table_of(TRIALS).columns}
    assert (titles["samples_per_second"], titles["peak_bytes"], titles["step_time_s"]) == (
        "samples/s",
        "peak",
        "step time",
    )
    assert (titles["number"], titles["joules_per_sample"]) == ("trial", "J/sample")


def test_numbers_sort_as_numbers_and_speeds_from_the_fastest() -> None:
    columns = {column.name: column for column in table_of(TRIALS).columns}
    assert columns["workers"].numeric
    assert columns["peak_bytes"].numeric
    assert not columns["precision"].numeric
    assert columns["tokens_per_second"].falls
    assert not columns["step_time_s"].falls
