"""Signals during `autotune run`: what is kept and left, and that the same command resumes."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.commands.run.programs import FLAGS, ONLY, SIZES, answered, autotune_run, program, study
from tests.hurry import hurried
from tests.probe.processes import becomes_true, bounded


def left(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder."""
    processes = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def interrupted(folder: Path, number: signal.Signals, trial: int, *options: str) -> tuple[int, str]:
    """Exit code and standard error of a search that gets this signal once this trial is measured."""
    words = [sys.executable, "-m", "autotune", "run", *ONLY, *options, "--", sys.executable, "train.py", *SIZES, *FLAGS]
    path = folder / "errors.txt"
    with (
        path.open("w+") as errors,
        bounded(subprocess.Popen(words, cwd=folder, env=hurried(), stdout=errors, stderr=errors)) as process,
    ):
        measured = lambda: [*folder.glob(f"reports/*/probes/{trial:04d}/measurement.json")]  # noqa: E731
        assert becomes_true(lambda: bool(measured() or process.poll() is not None), 200)
        assert process.poll() is None, path.read_text()
        process.send_signal(number)
        code = process.wait(100)
    return code, path.read_text()


@pytest.mark.parametrize(
    ("numbers", "options"),
    [
        ((signal.SIGKILL, signal.SIGINT), ()),
        pytest.param((signal.SIGTERM,), ("--then", "train"), marks=pytest.mark.nightly),
        pytest.param((signal.SIGKILL, signal.SIGINT), ("--by", "again"), marks=pytest.mark.nightly),
    ],
    ids=["sent", "SIGTERM", "again"],
)
def test_a_search_that_is_stopped_leaves_nothing_and_resumes(
    tmp_path: Path, numbers: tuple[signal.Signals, ...], options: tuple[str, ...]
) -> None:
    program(tmp_path)
    for trial, number in enumerate(numbers):
        code, errors = interrupted(tmp_path, number, trial, *options)
        assert code == (-9 if number == signal.SIGKILL else 128 + number), errors
        assert (trial == 0) == ("resuming" not in errors)
        if number != signal.SIGKILL:
            assert "Run the same command again to resume." in errors
        assert becomes_true(lambda: not left(tmp_path), 20)
        assert not (tmp_path / "saved").exists()
    measured = {path: path.read_text() for path in tmp_path.glob("reports/*/probes/*/measurement.json")}
    again = autotune_run(tmp_path, *ONLY, *options)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr
    assert len(measured) == len(numbers)
    assert all(path.read_text() == text for path, text in measured.items()), "nothing is lost or measured again"
    assert "as fast as your settings" in again.stdout
    result = study(tmp_path)
    assert answered(result) == (4, 1)
    assert (result.baseline.configuration.micro_batch_size, result.request.global_batch_size) == (1, 4)
    if not options:  # the answer alone
        assert "trained" not in again.stdout
        assert not (tmp_path / "saved").exists()
