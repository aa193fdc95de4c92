"""Ctrl-C, SIGTERM and SIGHUP on real commands: what is printed, kept, and left running."""

import json
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from autotune.commands import search as workflow
from autotune.commands.result import TuningResult
from autotune.core.interrupt import SAID, Terminated, ending_on_signals
from autotune.study.plan import Progress
from tests.conftest import RECORDED
from tests.probe.processes import becomes_true, started_in
from tests.recorded_host import RecordedHost
from tests.terminals import environment_with, terminal

SEARCH = "search bert-mini -b 8 --sequence-length 8 --device cpu --n-trials 9 --sampler random --search-space quick"
WORDS = [*SEARCH.split(), "--study-name", "stopped"]


def test_ctrl_c_once_ends_after_the_running_probe(tmp_path: Path) -> None:
    with terminal(WORDS, tmp_path, AUTOTUNE_TEST=str(tmp_path)) as shown:
        shown.wait_for("prepare ✓")
        shown.press("\x03")
        shown.wait_for(SAID[:40])
        assert shown.end() == 130
    assert "Interrupted. 2 trials kept. Run the same command again to resume." in shown.text
    assert re.search("Fastest so far, not proven: |Nothing faster than the baseline so far", shown.text)
    assert "Report so far: reports/stopped/report.html" in shown.text
    assert "Traceback" not in shown.text
    search = TuningResult.load(tmp_path / "reports" / "stopped")
    assert search.stop_reason == "interrupted by the user"
    assert [trial.number for trial in search.trials] == [0, 1]
    assert not any(trial.confirmed for trial in search.trials)
    assert "Why it ended: interrupted by the user." in (tmp_path / "reports" / "stopped" / "summary.md").read_text()
    assert becomes_true(lambda: not started_in(tmp_path), 20)


@pytest.mark.nightly
def test_ctrl_c_twice_ends_at_once_and_loses_nothing(tmp_path: Path) -> None:
    with terminal(WORDS, tmp_path, AUTOTUNE_TEST=str(tmp_path)) as shown:
        shown.wait_for("2 of 9")
        shown.press("\x03")
        shown.wait_for(SAID[:40])
        shown.press("\x03")
        assert shown.end() == 130
    assert "Traceback" not in shown.text
    search = TuningResult.load(tmp_path / "reports" / "stopped")
    assert [trial.number for trial in search.trials][:2] == [0, 1]
    assert search.stop_reason == "interrupted by the user"
    assert becomes_true(lambda: not started_in(tmp_path), 20)


@pytest.mark.nightly
def test_a_signal_ends_at_once_with_one_object_of_json_and_no_control_codes_in_the_log(tmp_path: Path) -> None:
    order = tmp_path / "reports" / "stopped" / "probes" / "0000" / "order.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *WORDS, "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment_with(AUTOTUNE_TEST=str(tmp_path), FORCE_COLOR="1"),
    )
    assert becomes_true(lambda: order.exists() or process.poll() is not None, 240)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    error = json.loads(out)["error"]
    assert error["exit_code"] == 128 + signal.SIGTERM
    assert "Run the same command again to resume." in error["advice"]
    assert "Traceback" not in err
    assert "Ended by SIGTERM. " in err
    assert "\x1b" not in err
    assert TuningResult.load(tmp_path / "reports" / "stopped").stop_reason == "ended by SIGTERM"
    assert becomes_true(lambda: not started_in(tmp_path), 20)


@pytest.mark.nightly
def test_a_search_whose_terminal_is_closed_writes_its_report(tmp_path: Path) -> None:
    order = tmp_path / "reports" / "stopped" / "probes" / "0000" / "order.json"
    with terminal(WORDS, tmp_path, AUTOTUNE_TEST=str(tmp_path)) as shown:
        assert becomes_true(lambda: order.exists() or shown.process.poll() is not None, 240)
        shown.close_terminal()
        assert shown.process.wait(60) == 128 + signal.SIGHUP
    assert TuningResult.load(tmp_path / "reports" / "stopped").stop_reason == "ended by SIGHUP"
    assert becomes_true(lambda: not started_in(tmp_path), 20)


class Dying:
    """Python swallows what is raised while this is deleted: there comes SIGTERM."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_search_ends_with_its_report_though_python_swallowed_the_exception_of_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowed: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: swallowed.append(raised.exc_value))

    def watch(progress: Progress) -> None:
        if progress.kind == "trial":
            Dying()

    options = {"output_dir": str(tmp_path), "study_name": "swallowed", "device": "cpu", "no_history": True}
    with ending_on_signals(), pytest.raises(Terminated):
        workflow.search("bert-mini", 16, probes=partial(RecordedHost, RECORDED), watch=watch, **options)
    assert [type(error) for error in swallowed] == [Terminated]
    search = TuningResult.load(tmp_path / "swallowed")
    assert search.stop_reason == "ended by SIGTERM"
    assert [trial.number for trial in search.trials] == [0]
