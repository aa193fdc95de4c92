"""What a program gets: one JSON object on standard output, all else on standard error, whatever happens."""

import contextlib
import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.common import ErrorReporter
from autotune.commands import search
from autotune.core.errors import StorageFailed
from autotune.judge.standing import Standing
from autotune.study.plan import Progress, ProgressKind, Watch
from tests.makers import standing_of, trial
from tests.probe.processes import bounded
from tests.terminals import environment_with


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "autotune", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment_with(**variables), timeout=300
    )


def told(*words: str) -> tuple[int, Any, str]:
    """(exit code, the one object on standard output, standard error) of a command with --json."""
    done = CliRunner().invoke(app, [*words, "--json"])
    return done.exit_code, json.loads(done.stdout), done.stderr


@pytest.fixture
def studies(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study and a damaged one, where commands run."""
    shutil.copytree(saved, tmp_path / "reports" / "first")
    (tmp_path / "reports" / "second").mkdir()
    (tmp_path / "reports" / "second" / "request.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_studies_are_one_object_the_damaged_among_them(studies: Path) -> None:
    code, known, err = told("studies")
    assert (code, err) == (0, "")
    first, second = known["studies"]
    assert (first["name"], first["trials"]) == ("first", 3)
    assert first["best"]["micro_batch_size"] == 16
    assert second["name"] == "second"
    assert "reports/second/request.json cannot be read" in second["error"]
    assert told("studies", "--output-dir", "nowhere")[1] == {"studies": []}


def test_the_spaces_are_one_object(studies: Path) -> None:
    code, known, err = told("search-spaces")
    assert (code, err) == (0, "")
    assert known["spaces"]["quick"]["settings"]["precision"] == ["fp32", "tf32", "fp16", "bf16"]
    assert known["spaces"]["full"]["description"]


@pytest.mark.parametrize("words", [["report", "nowhere"], ["doctor", "--device", "gpu"]])
def test_what_cannot_be_done_is_an_object_too_and_one_line_on_standard_error(words: list[str], studies: Path) -> None:
    code, known, err = told(*words)
    assert code == known["error"]["exit_code"] == 2
    assert known["error"]["type"] == "InvalidRequest"
    assert err == f"Error: {known['error']['message']} {known['error']['advice']}\n"


def test_whatever_is_printed_beside_the_object_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with ErrorReporter(as_json=True) as answer:
        print("a library speaks")
        answer.json({"found": 1})
        print("one that was left behind speaks late")
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"found": 1}
    assert printed.err == "a library speaks\none that was left behind speaks late\n"


def test_what_nobody_foresaw_is_an_object_too_with_its_traceback_on_standard_error(studies: Path) -> None:
    """A package that fails with an error of its own where it is imported."""
    (studies / "numpy.py").write_text("raise TypeError('broken')")
    done = run(studies, "report", "first", "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("TypeError", 1)
    assert error["message"]
    assert "Traceback" in done.stderr
    assert "Error" not in run(studies, "report", "first").stdout


def test_a_temporary_folder_without_room_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), ErrorReporter(as_json=True):
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/ask-1")
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert (error["type"], error["exit_code"]) == ("StorageFailed", StorageFailed.exit_code)
    assert len(printed.err.splitlines()) == 1
    assert "/scratch/ask-1" in printed.err
    assert "TMPDIR" in error["advice"]


@pytest.mark.parametrize("fresh", [True, False])
def test_who_interrupts_is_told_what_is_kept_and_how_to_resume(
    fresh: bool, studies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, watch: Watch, **options: Any) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            watch(Progress(ProgressKind.PREPARING, Standing(), message="estimating memory"))
        watch(
            Progress(
                ProgressKind.STOPPING, standing_of((trial(0), trial(3, 20.0))), folder=studies / "reports" / "first"
            )
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "search", interrupted)
    words = ["search", "bert-mini", "--global-batch-size", "8", *(["--fresh"] if fresh else [])]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (130, "estimating memory\n")
    assert "Fastest so far, not proven: 8x6 fp32" in done.stderr
    assert "\nReport so far: reports/first/report.html\n" in done.stderr
    assert "Interrupted. 2 trials kept. Run the same command again" in done.stderr
    assert ("without --fresh" in done.stderr) is fresh


@pytest.mark.parametrize(
    "words", [["search"], ["search", "x", "--no-such"], ["serch"], ["guide", "x", "--global-batch-size", "many"]]
)
def test_a_usage_error_is_an_object_too(words: list[str]) -> None:
    code, known, err = told(*words)
    assert code == known["error"]["exit_code"] == 2
    assert known["error"]["type"] == "UsageError"
    assert known["error"]["message"]
    assert err.startswith("Error: ")


@pytest.mark.parametrize("words", [["search", "--help"], ["studies", "--json"]])
def test_a_reader_that_goes_away_is_no_error_to_speak_of(words: list[str], studies: Path) -> None:
    command = [sys.executable, "-m", "autotune", *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with bounded(subprocess.Popen(command, **pipes, text=True, env=environment_with())) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 1
