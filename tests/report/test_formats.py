"""A table in other programs' formats: equal where that is promised, harmless and readable everywhere."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import pandas as pd
import pytest

from autotune.commands.result import TuningResult
from autotune.core import Configuration, InvalidRequest, Outcome, Trial
from autotune.core.errors import StorageFailed
from autotune.report.formats import FORMATS, formatted, quoted
from autotune.report.table import frame
from tests.makers import completed, configuration, ended, out_of_memory, result, step, trial, warned

ROOT = Path(__file__).parents[2]
TEXTS = [
    "=1+1", "+1", "-2+3", "@SUM(A1)", "\tx", "\rx", "\n=1", "'=1", "''=1", "'quoted'", "-", "#REF!", "NA", "nan", "None",
    "<NA>", "a,b", 'say "no"', "one\r\ntwo\rthree\nfour", " x ", "\x1b[31mred\x00", "é 😀 \u2028 \x85", "0012", "1e5",
    "a | b & c $x_1$ 100% #1 {y} ^ ~ \\", "[enforce fail", "<script>alert(1)</script>", "x" * 40_000,
]  # fmt: skip
ODD = [Trial(number, configuration(), ended(Outcome.CRASHED, reason=text)) for number, text in enumerate(TEXTS)]
MIXED = [
    trial(0, confirmed=0.1 + 0.2),
    trial(1, 20.0, peak_device_bytes=2**40 + 1, observed_warnings=warned("throttled", "=a, b")),
    Trial(2, configuration(), completed(steps=(step(0.7, samples=48),))),
    Trial(3, configuration(48), out_of_memory(configuration(48))),
    Trial(4, Configuration.exact(48, 8, {"liger": "none"}), ended(Outcome.UNSUPPORTED)),
]
EVERY = {"mixed": MIXED, "odd texts": ODD, "empty": [], "one": [trial(0)]}


def written(folder: Path, table: pd.DataFrame, format: str) -> Path:
    path = folder / f"table{FORMATS[format].suffix}"
    whole = formatted(table, format)
    path.write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    return path


# What comes back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_parquet_comes_back_equal_to_the_bit(kind: str, tmp_path: Path) -> None:
    table = frame(EVERY[kind])
    again = pd.read_parquet(written(tmp_path, table, "parquet"))
    pd.testing.assert_frame_equal(again, table, check_exact=True)
    assert again.equals(table)


def test_a_committed_study_s_files_are_what_was_measured(tmp_path: Path) -> None:
    loaded = TuningResult.load(ROOT / "reports" / "gpt2-mini-causal-lm-gb48-cpu")
    folder = loaded.save(tmp_path / "study")
    again = TuningResult.load(folder)
    table = again.to_frame()
    pd.testing.assert_frame_equal(table, loaded.to_frame(), check_exact=True)
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "trials.parquet"), table, check_exact=True)
    assert dataclasses.replace(again, folder=loaded.folder) == loaded
    for name in ("request.json", "result.json"):
        assert (again.save(tmp_path / "again") / name).read_bytes() == (folder / name).read_bytes()


def test_a_line_of_json_lines_is_an_object_that_any_reader_takes() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    rows = [json.loads(line, parse_constant=refuse) for line in str(formatted(frame(MIXED), "jsonl")).splitlines()]
    assert [row["number"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[2]["samples_per_second_high"] == "Infinity"
    assert rows[3]["samples_per_second"] is None
    assert (rows[0]["pin_memory"], rows[4]["pin_memory"]) == (False, None)


# Spreadsheets ---------------------------------------------------------------------------------------------------------


def test_what_a_spreadsheet_would_run_is_quoted_and_nothing_else() -> None:
    for text in ("=1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "'=1", "''=1"):
        assert quoted(text) == f"'{text}"
    for text in ("", "a=1", "'x", "1-1", " =1", "''"):
        assert quoted(text) == text


def test_plain_csv_readers_get_every_row_and_column() -> None:
    table = frame(ODD)
    rows = list(csv.DictReader(io.StringIO(str(formatted(table, "csv")), newline="")))
    assert list(rows[0]) == list(table.columns)
    assert [int(row["number"]) for row in rows] == list(table["number"])
    assert [row["failure_reason"].lstrip("'") for row in rows] == [text.lstrip("'") for text in TEXTS]


# People ---------------------------------------------------------------------------------------------------------------


def test_markdown_s_table_has_a_line_a_row_and_nothing_that_is_markup() -> None:
    lines = str(formatted(frame(ODD), "markdown")).splitlines()
    assert len(lines) == 2 + len(ODD)
    columns = len(frame(ODD).columns)
    for line in lines:
        assert line.replace("\\\\", "").replace("\\|", "").count("|") == columns + 1
        assert "<" not in line
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in "".join(lines)


def test_tables_for_people_have_six_digits_and_nothing_for_what_is_missing() -> None:
    table = frame(MIXED)[["samples_per_second", "peak_device_bytes", "liger"]]
    assert "| 0.3 |" in str(formatted(table, "markdown"))
    assert str(2**40 + 1) in str(formatted(table, "markdown"))


# Doors ----------------------------------------------------------------------------------------------------------------


def test_a_result_is_exported_as_the_path_ends(tmp_path: Path) -> None:
    for name, format in FORMATS.items():
        path = result().export(tmp_path / f"trials{format.suffix}")
        other = result().export(str(tmp_path / "other"), name)
        named = result().export(tmp_path / f"named.{name}")
        assert named.read_bytes() == path.read_bytes()
        assert other.read_bytes() == path.read_bytes()


def test_what_cannot_be_exported_is_said_in_one_line(tmp_path: Path) -> None:
    for path, format, kind, said in (
        (tmp_path / "trials.cvs", None, InvalidRequest, "format of .* is unknown"),
        (tmp_path / "trials", "cvs", InvalidRequest, "no format 'cvs'"),
        (tmp_path / "none" / "trials.csv", None, StorageFailed, "No such file"),
        (tmp_path, "csv", StorageFailed, "is a folder"),
    ):
        with pytest.raises(kind, match=said) as caught:
            result().export(path, format)
        assert caught.value.advice
        assert "\n" not in str(caught.value)
