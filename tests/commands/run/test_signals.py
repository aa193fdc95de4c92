"""Signals during `autotune run`: what is kept and left, and that the same command resumes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.commands.run.programs import FLAGS, ONLY, SIZES, autotune_run, program
from tests.hurry import hurried


def left(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder."""
    processes = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def interrupted(folder: Path, number: signal.Signals, *options: str) -> tuple[int, str]:
    """Exit code and standard error of a search that gets this signal once its first trial is measured."""
    words = [sys.executable, "-m", "autotune", "run", *ONLY, *options, "--", sys.executable, "train.py", *SIZES, *FLAGS]
    with (
        (folder / "errors.txt").open("w+") as errors,
        subprocess.Popen(words, cwd=folder, env=hurried(), stdout=errors, stderr=errors) as process,
    ):
        until = time.monotonic() + 200
        while not list(folder.glob("reports/*/probes/0000/measurement.json")):
            assert process.poll() is None, (folder / "errors.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(number)
        code = process.wait(100)
    return code, (folder / "errors.txt").read_text()


@pytest.mark.parametrize(
    ("number", "options", "code"),
    [
        (signal.SIGINT, (), 130),
        pytest.param(signal.SIGTERM, ("--then", "train"), 143, marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, ("--by", "again"), 130, marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, ("--by", "again"), -9, marks=pytest.mark.nightly),
        (signal.SIGKILL, (), -9),
    ],
    ids=["Ctrl-C", "SIGTERM", "again-Ctrl-C", "again-SIGKILL", "SIGKILL"],
)
def test_a_search_that_is_stopped_leaves_nothing_and_resumes(
    tmp_path: Path, number: signal.Signals, options: tuple[str, ...], code: int
) -> None:
    program(tmp_path)
    ended, errors = interrupted(tmp_path, number, *options)
    assert ended == code, errors
    if number != signal.SIGKILL:
        assert "Run the same command again to resume." in errors
    until = time.monotonic() + 20
    while left(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left(tmp_path)
    assert not (tmp_path / "saved").exists()
    again = autotune_run(tmp_path, *ONLY, *options)
    assert again.returncode == 0, again.stderr
    assert "resuming" in again.stderr
