"""`autotune report --format`: where each format goes, and what is refused."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.report.formats import formatted
from tests.makers import result


@pytest.fixture
def here(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one study, `reports/one`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "reports/one")
    return tmp_path


def report(*words: str) -> Result:
    return CliRunner().invoke(app, ["report", "one", *words])


def test_text_goes_to_standard_output_as_it_is(here: Path) -> None:
    done = report("--format", "csv")
    assert (done.exit_code, done.stdout) == (0, formatted(result().to_frame(), "csv"))


def test_bytes_go_to_a_file_that_is_named(here: Path) -> None:
    before = (here / "reports" / "one" / "trials.parquet").read_bytes()
    assert report("--format", "parquet", "--output", "table").stdout == "Written: table\n"
    assert len(pd.read_parquet(here / "table")) == len(result().trials)
    assert (here / "reports" / "one" / "trials.parquet").read_bytes() == before


@pytest.mark.parametrize("suffix", ["md", "parquet"])
def test_the_file_s_name_says_the_format(suffix: str, here: Path) -> None:
    assert report("--output", f"out.{suffix}").stdout == f"Written: out.{suffix}\n"
    assert (here / f"out.{suffix}").stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--output", "trials.txt"], 2, "is unknown"),
        (["--format", "parquet"], 2, "Name a file with --output"),
        (["--format", "html"], 2, "There is no format"),
        (["--format", "csv", "--output", "none/trials.csv"], 1, "none/trials.csv cannot be written"),
        (["--format", "csv", "--output", "."], 1, "it is a folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], code: int, said: str, here: Path) -> None:
    done = report(*words)
    assert done.exit_code == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
