"""Signals during `autotune run`: what is kept and left, and that the same command resumes."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.commands.run.exchange import _lives
from tests.commands.run.programs import autotune_run
from tests.hurry import hurried
from tests.probe.processes import becomes_true, bounded


def test_a_signal_of_the_user_s_own_reaches_the_program(tmp_path: Path) -> None:
    script = "trap 'exit 3' USR1; touch ready; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "autotune", "run", "--", "sh", "-c", script]
    with bounded(subprocess.Popen(words, cwd=tmp_path, env=hurried())) as process:
        assert becomes_true((tmp_path / "ready").exists, 60)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 3


@pytest.mark.parametrize(("number", "text"), [("INT", "Interrupted. "), ("TERM", "Ended by SIGTERM. ")])
def test_a_program_that_a_signal_ends_is_no_failure(number: str, text: str, tmp_path: Path) -> None:
    ended = autotune_run(tmp_path, "--quiet", command=["sh", "-c", f"echo loading; kill -{number} $$"], flags=())
    assert ended.returncode == 128 + signal.Signals[f"SIG{number}"]
    assert ended.stderr == f"{text}What was measured is kept. Run the same command again to resume.\n"


@pytest.mark.parametrize("redirected", ["", " < /dev/null"])
def test_a_terminal_is_noticed_whatever_standard_input_is(redirected: str, tmp_path: Path) -> None:
    code = "from autotune.commands.run.start import _at_the_terminal; print(_at_the_terminal())"
    command = f"{sys.executable} -c '{code}'{redirected} > '{tmp_path}/out.txt'"
    assert pty.spawn(["env", f"PYTHONPATH={Path.cwd()}", "sh", "-c", command]) == 0
    assert (tmp_path / "out.txt").read_text() == "True\n"
    elsewhere = subprocess.run([sys.executable, "-c", code], start_new_session=True, capture_output=True, check=True)
    assert elsewhere.stdout == b"False\n"


def test_a_killed_autotune_is_gone_for_a_program_that_waits_even_if_nobody_reaps_it() -> None:
    with subprocess.Popen(["true"]) as process:
        assert becomes_true(lambda: not _lives(process.pid), 20)
        assert Path(f"/proc/{process.pid}").exists()
    assert _lives(os.getpid())
