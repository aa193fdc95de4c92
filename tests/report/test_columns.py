"""What is documented of the columns is what the tables hold, in code and in docs."""

from autotune.commands.compare.columns import COMPARED, compared_frame
from autotune.report.columns import AFTER, BEFORE, dtypes, setting_column, trial_columns
from autotune.report.table import frame
from autotune.space.settings import SETTINGS
from tests.docs.pages import DOCS, whole
from tests.makers import SETTINGS as OF_A_TRIAL
from tests.makers import trial

OWN = [setting_column(name) for name in SETTINGS if name not in {column.name for column in BEFORE}]

STABLE = {
    "number": "int64", "rank": "Int64", "outcome": "string", "fits": "bool", "speedup": "float64",
    "speedup_low": "float64", "speedup_high": "float64", "samples_per_second": "float64",
    "samples_per_second_low": "float64", "samples_per_second_high": "float64", "peak_bytes": "Int64", "confirmed": "bool",
    "micro_batch_size": "int64", "gradient_accumulation_steps": "int64", "data_parallel_size": "int64",
    "global_batch_size": "int64", "checkpointing": "string", "precision": "string", "optimizer": "string",
    "workers": "Int64", "pin_memory": "boolean", "tokens_per_second": "float64",
}  # fmt: skip
"""What people look for comes first."""


def test_the_first_columns_are_what_people_look_for() -> None:
    dtypes_of = {name: str(dtype) for name, dtype in frame([trial(0)]).dtypes.items()}
    assert list(dtypes_of.items())[: len(STABLE)] == list(STABLE.items())


def test_the_documented_columns_are_the_frame_s() -> None:
    for table, documented in (
        (frame([trial(0)]), trial_columns(OF_A_TRIAL)),
        (frame([]), trial_columns()),
        (compared_frame([]), list(COMPARED)),
    ):
        assert {name: str(dtype) for name, dtype in table.dtypes.items()} == dtypes(documented)
        assert list(table.columns) == [column.name for column in documented]


def test_every_column_has_its_meaning_and_its_unit() -> None:
    units = {"_s": "seconds", "_seconds": "seconds", "_bytes": "bytes", "samples_per_second": "samples / second"}
    for column in (*BEFORE, *AFTER, *OWN, *COMPARED):
        assert column.meaning.endswith("."), column.name
        assert all(column.unit == unit for ending, unit in units.items() if column.name.endswith(ending)), column.name


def test_the_docs_hold_the_same_columns_in_their_order() -> None:
    rows = [line.split(" | ") for line in whole(DOCS / "columns.md").splitlines() if line.startswith("| `")]
    rows = [row for row in rows if len(row) == 4]  # the tables of columns
    documented = [(name.strip("| `"), dtype.strip("`"), unit, meaning) for name, dtype, unit, meaning in rows]
    columns = (*BEFORE, *AFTER, *OWN, *COMPARED)
    assert documented == [(item.name, item.dtype, item.unit or "-", f"{item.meaning} |") for item in columns]
