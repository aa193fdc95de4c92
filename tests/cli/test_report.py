"""`autotune report --format`: where each format goes, and what is refused."""

import json
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
    assert report("--format", "parquet", "--columns", "number,outcome").stdout == "Written: one.parquet\n"
    assert list(pd.read_parquet(here / "one.parquet").columns) == ["number", "outcome"]
    assert (here / "reports" / "one" / "trials.parquet").read_bytes() == before


@pytest.mark.parametrize("suffix", ["md", "parquet", "json"])
def test_the_file_s_name_says_the_format(suffix: str, here: Path) -> None:
    assert report("--output", f"out.{suffix}").stdout == f"Written: out.{suffix}\n"
    assert (here / f"out.{suffix}").stat().st_size > 100


def test_json_is_the_answer_by_either_name(here: Path) -> None:
    assert json.loads(report("--format", "json").stdout) == json.loads(report("--json").stdout)


def test_html_names_the_page_that_was_written(here: Path) -> None:
    page = here / "reports" / "one" / "report.html"
    page.write_text("<p>")
    assert report("--format", "html").stdout == "Written: reports/one/report.html\n"
    assert report("--output", "page.html").stdout == "Written: page.html\n"
    assert (here / "page.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--output", "trials.txt"], 2, "is unknown"),
        (["--format", "csv", "--columns", "numbr"], 2, "Did you mean 'number'?"),
        (["--format", "csv", "--output", "none/trials.csv"], 1, "none/trials.csv cannot be written"),
        (["--format", "csv", "--output", "."], 1, "it is a folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: list[str], code: int, said: str, here: Path) -> None:
    done = report(*words)
    assert done.exit_code == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
