"""Ctrl-C at the keyboard and SIGTERM from elsewhere, on a real search: what is said, kept, and left running."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.interruption import SAID
from autotune.result import TuningResult
from tests.probe.processes import becomes_true
from tests.terminals import surroundings, terminal

SEARCH = "search bert-mini --global-batch-size 8 --sequence-length 32 --device cpu --n-trials 9 --sampler random --space quick"
WORDS = [*SEARCH.split(), "--study-name", "stopped"]


def running(folder: Path) -> list[Path]:
    """Processes, zombies aside, that were started by the commands of this test."""
    mark = f"AUTOTUNE_TEST={folder}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(path)
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stopped")


def test_ctrl_c_once_ends_after_the_running_probe(folder: Path) -> None:
    with terminal(WORDS, folder, AUTOTUNE_TEST=str(folder)) as shown:
        shown.wait_for("probing 1")
        shown.press("\x03")
        shown.wait_for(SAID[:40])
        assert shown.end() == 130
    assert "Interrupted; the same command goes on where this one stopped." in shown.text
    assert "Best so far: " in shown.text
    assert "Report so far: reports/stopped/report.html" in shown.text
    assert "Traceback" not in shown.text
    result = TuningResult.load(folder / "reports" / "stopped")
    assert result.statement == "interrupted by the user"
    assert [trial.number for trial in result.trials] == [0, 1]
    assert not any(trial.confirmed for trial in result.trials)
    assert "Why it ended: interrupted by the user." in (folder / "reports" / "stopped" / "summary.md").read_text()
    assert becomes_true(lambda: not running(folder), 20)


def test_ctrl_c_twice_ends_at_once_and_loses_nothing(folder: Path) -> None:
    with terminal(WORDS, folder, AUTOTUNE_TEST=str(folder)) as shown:
        shown.wait_for("probing 2")
        shown.press("\x03")
        shown.wait_for(SAID[:40])
        shown.press("\x03")
        assert shown.end() == 130
    assert "Traceback" not in shown.text
    result = TuningResult.load(folder / "reports" / "stopped")
    assert [trial.number for trial in result.trials][:2] == [0, 1]
    assert result.statement == "interrupted by the user"
    assert becomes_true(lambda: not running(folder), 20)


def test_sigterm_ends_at_once_with_one_object_of_json_and_no_control_codes_in_the_log(folder: Path) -> None:
    before = len(TuningResult.load(folder / "reports" / "stopped").trials)
    order = folder / "reports" / "stopped" / "probes" / f"{before:04d}" / "order.json"
    order.unlink(missing_ok=True)  # of the probe that was interrupted
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *WORDS, "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings(AUTOTUNE_TEST=str(folder), FORCE_COLOR="1"),
    )
    assert becomes_true(lambda: order.exists() or process.poll() is not None, 240)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert json.loads(out)["error"]["exit_code"] == 143
    assert "Traceback" not in err
    assert "going on with" in err
    assert "\x1b" not in err
    assert TuningResult.load(folder / "reports" / "stopped").statement == "ended by SIGTERM"
    assert becomes_true(lambda: not running(folder), 20)
