"""The end of `autotune search`: what to do with the answer, at 80 columns."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.app import app
from tests.hurry import hurry

WORDS = ["search", "bert-mini", "-b", "16", "--device", "cpu", "--no-history"]


def end_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*WORDS, "--quiet", *words])
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hurry(monkeypatch, recorded=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_end_names_a_file_a_command_and_a_report_that_are_there(recorded: Path) -> None:
    text = end_of("--n-trials", "3", "--study-name", "first")
    lines = dict(re.findall(r"^ *(Use it|FILE|Check it|Report)  +(\S.*?)(?: {3}.*)?$", text, re.MULTILINE))
    assert list(lines) == ["Use it", "FILE", "Check it", "Report"]
    assert (recorded / lines["FILE"]).exists()
    assert (recorded / lines["Report"]).exists()
    _, name, *words = shlex.split(lines["Check it"])
    typer.main.get_command(app).commands[name].make_context(name, words)  # type: ignore[attr-defined]


def test_where_nothing_was_tried_there_is_nothing_to_use_and_how_to_go_on(recorded: Path) -> None:
    text = end_of("--n-trials", "1")
    assert "Nothing to compare yet" in text
    assert "Use it" not in text
    assert "Check it" not in text
    (command,) = re.findall(r"^ +(autotune search (?:.*\\\n)*.*)$", text, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", ""))
    typer.main.get_command(app).commands["search"].make_context("search", words[2:])  # type: ignore[attr-defined]
