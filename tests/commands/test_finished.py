"""A finished study answers the same request at once; any other request goes on."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.commands import search
from autotune.commands.finished import finished_study, request_fingerprint
from autotune.commands.result import TuningResult
from autotune.core.errors import NothingFits
from autotune.core.request import tuning_request
from autotune.report import files
from tests.conftest import RECORDED
from tests.recorded_host import RecordedHost

ASKED: dict[str, Any] = {"sequence_length": 32, "device": "cpu", "n_trials": 3, "no_history": True}
COMMAND = (
    *("search", "bert-mini", "--global-batch-size", "16", "--sequence-length", "32", "--device", "cpu"),
    *("--n-trials", "3", "--no-history"),
)


def searched(**options: Any) -> tuple[TuningResult, list[str]]:
    """(the result, the kinds of what was told to those who watch)."""
    kinds: list[str] = []
    result = search.search(
        "bert-mini",
        16,
        probes=partial(RecordedHost, RECORDED),
        watch=lambda progress: kinds.append(progress.kind),
        **ASKED | options,
    )
    return result, kinds


def stored_answer(**options: Any) -> TuningResult | None:
    request = tuning_request("bert-mini", 16, **ASKED | options)
    return finished_study(request, request_fingerprint(request))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study."""
    folder = searched(output_dir=str(tmp_path_factory.mktemp("reports")))[0].folder
    assert folder is not None
    return folder


@pytest.fixture
def finished(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuningResult:
    """A copy of the study in ./reports."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(stored, Path("reports") / stored.name)
    return TuningResult.load(Path("reports") / stored.name)


def test_the_same_request_is_answered_with_what_is_stored_and_starts_nothing(finished: TuningResult) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path("reports").rglob("*")}
    again, kinds = searched()
    assert kinds == []
    assert again.to_dict() == finished.to_dict()
    assert again.stop_reason == finished.stop_reason
    assert {path: path.stat().st_mtime_ns for path in Path("reports").rglob("*")} == before


def test_a_search_that_ended_while_it_wrote_its_report_writes_it_again(
    finished: TuningResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = files.write_whole

    def killed(path: Path, content: bytes) -> None:
        if path.name == "report.html":
            raise KeyboardInterrupt
        write(path, content)

    assert finished.folder is not None
    (finished.folder / "report.html").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            finished.save(finished.folder)
    assert stored_answer() is None
    again, kinds = searched()
    assert "probing" not in kinds
    assert again.best == finished.best
    assert (finished.folder / "report.html").exists()
    assert stored_answer() is not None


def test_the_same_command_prints_the_same_answer_and_loads_nothing_heavy(finished: TuningResult) -> None:
    first = CliRunner().invoke(app, [*COMMAND, "--json"])
    assert first.exit_code == 0
    code = (
        "import sys; from autotune.cli.app import app\n"
        f"app({list(COMMAND)!r}, standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'optuna', 'pandas', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    place = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | place,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert finished.stop.short in done.stdout
    assert "comparing losses" not in done.stdout
    assert f'"statement": "{finished.stop_reason}"' in first.stdout


@pytest.mark.nightly
def test_another_request_goes_on(finished: TuningResult) -> None:
    others = ({"n_trials": 4}, {"timeout": "1h"}, {"confirmation_rounds": 4}, {"seed": 1})
    assert [stored_answer(**other) for other in others] == [None] * len(others)
    assert searched(fresh=True)[1][-1] in ("done", "finishing")
    assert searched(n_trials=4)[1][-1] in ("done", "finishing")


def test_where_nothing_fits_the_same_command_says_so_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tight = {"memory_limit": "100MiB"}
    with pytest.raises(NothingFits) as first:
        searched(**tight)
    with pytest.raises(NothingFits) as again:
        stored_answer(**tight)
    assert str(again.value) == str(first.value)


def test_a_fingerprint_changes_with_what_the_request_names_and_not_with_where_the_report_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data.txt"
    data.write_text("some lines\n")

    def fingerprint(**options: Any) -> str:
        return request_fingerprint(tuning_request("bert-mini", 16, device="cpu", dataset=str(data), **options))

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = fingerprint()
    assert before == fingerprint(output_dir="elsewhere")
    assert before != fingerprint(n_trials=7)
    data.write_text("other lines, and more of them\n")
    changed = fingerprint()
    assert changed != before
    os.utime(data, (1, 1))
    assert fingerprint() == changed
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert fingerprint() not in (before, changed)
