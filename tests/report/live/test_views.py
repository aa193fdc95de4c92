"""What a search shows while it runs: which view is chosen, and the plain lines of logs."""

import contextlib
import io
import os
import pty
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.core import Outcome, Trial
from autotune.report.live.text import best_text, lead_text
from autotune.report.live.views import LiveTable, following, is_lively, saying, watcher
from autotune.study.plan import Progress
from tests.makers import configuration, ended, out_of_memory, trial

TRIALS = (
    trial(0, 40.0),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    Trial(2, configuration(16), ended(Outcome.CRASHED, reason="\x1b[31mred\x1b[0m\nand a second line")),
)


def progress(kind: str, number: int) -> Progress:
    return Progress(
        kind,
        TRIALS[: number + 1],
        number=number,
        configuration=TRIALS[number].configuration,
        trial=TRIALS[number],
        best=TRIALS[0],
        probes_left=5,
        seconds_to_go=61.0,
    )


def piped(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


@pytest.fixture
def on_terminal() -> Iterator[Console]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file:
        yield Console(file=file)
    os.close(ours)


def test_a_log_gets_one_line_for_each_event_however_narrow_and_no_control_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = piped(20)
    assert out.is_terminal
    with watcher(out, quiet=False) as watch:
        watch(Progress("preparing", (), message="estimating memory"))
        for number in range(3):
            watch(progress("probing", number))
            watch(progress("trial", number))
        watch(Progress("stopping", (), message="stopping after the running probe"))
    assert "\x1b" not in out.file.getvalue()  # type: ignore[attr-defined]
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 5
    assert lines[0] == "estimating memory"
    assert lines[1].startswith("trial 0: 8x6 fp32 (yours): ")
    assert "best so far 40" in lines[1]
    assert "5 trials left; up to 1 min to go" in lines[1]
    assert "out of memory" in lines[2]
    assert "[31mred[0m and a second line" in lines[3]


def test_only_a_terminal_that_is_not_quiet_gets_a_table(on_terminal: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(watcher(on_terminal, quiet=False), LiveTable)
    assert not isinstance(watcher(piped(), quiet=False), LiveTable)
    assert not isinstance(watcher(on_terminal, quiet=True), LiveTable)


def test_a_ci_and_a_dumb_terminal_get_plain_lines(on_terminal: Console) -> None:
    for variables in ({}, {"CI": "false"}, {"CI": ""}):
        assert is_lively(on_terminal, {"TERM": "xterm"} | variables)
        assert not is_lively(piped(), {"TERM": "xterm"} | variables)
    for variables in ({"CI": "true"}, {"CI": "1"}, {"TERM": "dumb"}):
        assert not is_lively(on_terminal, {"TERM": "xterm"} | variables)


def test_who_searches_quietly_is_still_answered_at_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    with watcher(piped(), quiet=True) as watch:
        watch(progress("trial", 0))
        watch(Progress("stopping", (), message="stopping after the running probe"))
    assert capsys.readouterr() == ("", "stopping after the running probe\n")


def test_a_caller_in_python_sees_plain_lines_on_standard_error_their_own_function_or_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Progress] = []
    with following(seen.append) as watch:
        watch(progress("trial", 0))
    assert len(seen) == 1
    with following(False) as watch:
        watch(progress("trial", 0))
    assert capsys.readouterr() == ("", "")
    for shown in (None, True):
        with following(shown) as watch:
            watch(progress("trial", 0))
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("trial 0: ")
        assert err.count("\n") == 1


def test_what_is_shown_in_python_names_arguments_and_goes_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    with following(None) as watch, contextlib.redirect_stderr(sys.stdout):
        watch(Progress("preparing", (), message="--fresh measures anew"))
        print("a library's greeting", file=sys.stderr)
    assert capsys.readouterr() == ("a library's greeting\n", "fresh=True measures anew\n")


def test_lines_go_to_standard_error_to_the_caller_s_function_or_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    for watch in (None, True, False, seen.append):
        saying(watch)("measuring")
    assert capsys.readouterr() == ("", "measuring\nmeasuring\n")
    assert seen == ["measuring"]


def test_what_looks_faster_than_the_baseline_is_shown_before_it_is_proven() -> None:
    trials = (trial(0, 40.0), trial(1, 64.0), trial(2, 50.0))
    shown = Progress("trial", trials, best=trials[0])
    assert lead_text(shown).startswith("fastest so far 64")
    assert lead_text(shown).endswith("(trial 1), 1.60x yours, not proven yet")
    assert lead_text(replace(shown, best=trials[2], speedup=1.25)).startswith("best so far 50")
    refused = replace(shown, trials=(trials[0], replace(trials[1], disqualified_reason="its losses differ")))
    assert lead_text(refused) == best_text(refused)
