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
from autotune.judge.standing import Standing
from autotune.report.live.text import cells, gain_text, lead_text, ranked, to_go_text
from autotune.report.live.views import LiveTable, following, is_lively, saying, watcher
from autotune.study.plan import Progress, ProgressKind
from tests.makers import configuration, ended, out_of_memory, standing_of, trial

TRIALS = (
    trial(0, 40.0),
    Trial(1, configuration(48), out_of_memory(configuration(48))),
    Trial(2, configuration(16), ended(Outcome.CRASHED, reason="\x1b[31mred\x1b[0m\nand a second line")),
)


def progress(kind: str, number: int) -> Progress:
    return Progress(
        kind,
        standing_of(TRIALS[: number + 1]),
        number=number,
        configuration=TRIALS[number].configuration,
        trial=TRIALS[number],
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
        watch(Progress(ProgressKind.PREPARING, Standing(), message="estimating memory"))
        for number in range(3):
            watch(progress(ProgressKind.PROBING, number))
            watch(progress(ProgressKind.TRIAL, number))
        watch(Progress(ProgressKind.STOPPING, Standing(), message="stopping after the running probe"))
    assert "\x1b" not in out.file.getvalue()  # type: ignore[attr-defined]
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 5
    assert lines[0] == "estimating memory"
    assert lines[1].startswith("trial 0: 8x6 fp32 (baseline): ")
    assert "5 trials left; about 1 min to go" in lines[1]
    assert "out of memory" in lines[2]
    assert "nothing faster than the baseline so far" in lines[2]
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
        watch(progress(ProgressKind.TRIAL, 0))
        watch(Progress(ProgressKind.STOPPING, Standing(), message="stopping after the running probe"))
    assert capsys.readouterr() == ("", "stopping after the running probe\n")


def test_a_caller_in_python_sees_plain_lines_on_standard_error_their_own_function_or_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[Progress] = []
    with following(seen.append) as watch:
        watch(progress(ProgressKind.TRIAL, 0))
    assert len(seen) == 1
    with following(False) as watch:
        watch(progress(ProgressKind.TRIAL, 0))
    assert capsys.readouterr() == ("", "")
    for shown in (None, True):
        with following(shown) as watch:
            watch(progress(ProgressKind.TRIAL, 0))
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("trial 0: ")
        assert err.count("\n") == 1


def test_what_is_shown_in_python_goes_where_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    with following(None) as watch, contextlib.redirect_stderr(sys.stdout):
        watch(Progress(ProgressKind.PREPARING, Standing(), message="--fresh measures anew"))
        print("a library's greeting", file=sys.stderr)
    assert capsys.readouterr() == ("a library's greeting\n", "--fresh measures anew\n")


def test_lines_go_to_standard_error_to_the_caller_s_function_or_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    for watch in (None, True, False, seen.append):
        saying(watch)("measuring")
    assert capsys.readouterr() == ("", "measuring\nmeasuring\n")
    assert seen == ["measuring"]


TWICE = configuration(16, precision="bf16")


def rows(shown: Progress) -> list[tuple[str, str]]:
    """Mark and ratio of each row, in their order."""
    texts = [cells(trial, shown) for trial in ranked(shown, 12)]
    return [(mark, ratio) for mark, _, _, ratio, _ in texts]


def test_what_is_fastest_by_its_probe_is_not_called_the_best() -> None:
    trials = (trial(0, 40.0), trial(1, 64.0, of=TWICE), trial(2, 50.0))
    shown = Progress(ProgressKind.TRIAL, standing_of(trials))
    assert (shown.best, shown.fastest) == (None, trials[1])
    assert lead_text(shown) == "fastest so far, not proven: 64.0 ± 2.9 samples/s (trial 1), 1.60x the baseline"
    assert rows(shown) == [("", "1.60x"), ("", "1.25x"), ("", "1.00x")]
    other = replace(trials[1], disqualified_reason="its losses differ")
    barred = replace(shown, standing=standing_of((trials[0], other, trials[2])))
    assert lead_text(barred).endswith(" samples/s (trial 2), 1.25x the baseline")


def test_the_star_is_what_is_proven_against_the_user_s_settings() -> None:
    one = (trial(0, 8.0), trial(1, 24.0, of=TWICE, confirmed=24.0), trial(2, 160.0))
    assert Progress(ProgressKind.CONFIRMED, standing_of(one)).best is None, "the baseline was measured once"
    assert rows(Progress(ProgressKind.CONFIRMED, standing_of(one))) == [("", "20.00x"), ("", "3.00x"), ("", "1.00x")]
    both = Progress(ProgressKind.CONFIRMED, standing_of((trial(0, 8.0, confirmed=8.0), *one[1:])))
    assert rows(both) == [("*", "3.00x"), ("", "20.00x"), ("", "1.00x")]
    assert lead_text(both).startswith("best so far: 24.0")
    fails = Trial(0, TWICE, out_of_memory(TWICE))
    assert Progress(ProgressKind.TRIAL, standing_of((fails, *both.trials[1:]))).best is both.trials[1], (
        "measured again is all that can be shown"
    )


@pytest.mark.parametrize("of", [0, 1])
def test_noise_is_shown_as_a_question_mark_instead_of_a_ratio(of: int) -> None:
    trials = [trial(0, 7.8), trial(1, 163.0)]
    trials[of] = trial(of, float(trials[of].samples_per_second or 0), spread=0.4)
    shown = Progress(ProgressKind.TRIAL, standing_of(trials))
    assert rows(shown) == [("", "?"), ("", "1.00x")]
    assert "x yours" not in lead_text(shown)


def test_nothing_that_is_slower_than_the_user_s_settings_is_called_fast() -> None:
    slower = (trial(0, 160.0), trial(1, 130.0), trial(2, 90.0))
    assert lead_text(Progress(ProgressKind.TRIAL, standing_of(slower))) == "nothing faster than the baseline so far"
    worse = (trial(0, 160.0, confirmed=160.0), trial(1, 150.0, confirmed=150.0))
    assert (
        Progress(ProgressKind.CONFIRMED, standing_of(worse)).best,
        lead_text(Progress(ProgressKind.CONFIRMED, standing_of(worse))),
    ) == (
        None,
        "nothing faster than the baseline so far",
    )
    assert lead_text(Progress(ProgressKind.TRIAL, standing_of((trial(0, 40.0),)))) == "", (
        "the line itself has its speed"
    )


def test_bounds_and_estimates_that_tell_nothing_are_not_given_as_numbers() -> None:
    shown = Progress(ProgressKind.PROBING, standing_of((trial(0), trial(1))), max_gain=0.12, seconds_to_go=10.0)
    assert gain_text(shown) == "at most 12% more to gain"
    assert gain_text(replace(shown, max_gain=5.33)) == "more to gain: unknown yet"
    assert [to_go_text(shown, since) for since in (0.0, 9.0, 30.0)] == [
        *("about 10 s to go", "about 10 s to go"),
        "longer than expected",
    ]
