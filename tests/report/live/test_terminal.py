"""The live table: calm at any width, the fastest first, in order after the terminal was made narrower."""

import contextlib
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autotune.core import Configuration, Outcome, Trial, Value
from autotune.judge.standing import Standing
from autotune.report.live.terminal import OTHER_LINES, LiveTable, table
from autotune.report.live.text import ROWS
from autotune.sampler.policy import Why
from autotune.space.file import open_space
from autotune.study.plan import Progress, ProgressKind
from autotune.study.schedule import MESSAGES
from tests.makers import configuration, ended, out_of_memory, standing_of, trial

EVERY: dict[str, Value] = {
    name: values[0] for name, values in open_space("full").values.items() if name != "micro_batch_size"
}
FULL = Configuration.exact(48, 8, EVERY)
"""A configuration of every setting: told whole, it fills ten lines of 80 columns."""


def console(width: int, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def progress(trials: list[Trial], **facts: object) -> Progress:
    state = {"number": len(trials), "configuration": FULL, "probes_left": 5, "seconds_to_go": 361.0}
    return Progress(ProgressKind.PROBING, standing_of(trials), **state | facts)  # type: ignore[arg-type]


def many(count: int = 30) -> list[Trial]:
    """Trials of every kind and size of number; all settings differ from the baseline's in some."""
    others = Configuration.exact(
        48, 16, EVERY | {"precision": "bf16", "checkpointing": "full", "workers": 8, "compile": "max_autotune"}
    )
    kinds = [
        trial(0, 1.2345, of=others),
        trial(0, 41.2, of=configuration(16, precision="bf16"), confirmed=40.0),
        trial(0, 123456.7, of=others, spread=0.4),
        Trial(0, others, out_of_memory(others)),
        Trial(0, others, ended(Outcome.MISCONFIGURED)),
        Trial(0, others, ended(Outcome.UNSUPPORTED)),
    ]
    return [trial(0, 9.0, of=FULL), *(replace(kinds[number % len(kinds)], number=number) for number in range(1, count))]


def printed(out: Console) -> list[str]:
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


def lines(width: int, shown: Progress, rows: int = ROWS) -> list[str]:
    return [text.plain for text in table(shown, width, rows)]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_trial_has_one_line_and_no_column_ever_moves(width: int) -> None:
    trials = many()
    header = lines(width, progress(trials[:1]))[0]
    for count in range(1, len(trials) + 1):
        shown = lines(width, progress(trials[:count]))
        assert shown[0] == header
        assert len(shown) == 1 + min(count, ROWS)
        assert max(map(len, shown)) <= width


def test_rows_are_by_speed_with_the_baseline_among_them_and_failures_last() -> None:
    shown = lines(80, progress(many(7)))
    assert [line.split()[0] for line in shown[1:]] == ["16x3", "16x3", "8x6", "16x3", "16x3", "16x3", "16x3"]
    assert [line.split()[-1] for line in shown[5:]] == ["memory", "changed", "run"]
    assert "(baseline)" in lines(80, progress(many(30)), 4)[-1]


def test_only_words_that_fit_whole_are_shown_of_a_long_configuration() -> None:
    words = set(" ".join(lines(200, progress(many(4)))).split())
    for width in (50, 60, 70, 80):
        assert {word for line in lines(width, progress(many(4))) for word in line.split()} - words <= {"…"}


def test_what_cannot_win_is_marked_and_narrow_terminals_leave_columns_out() -> None:
    barred = [*many(2), replace(trial(2, 50.0), disqualified_reason="its losses differ")]
    assert lines(80, progress(barred))[1].split()[0] == "x"
    assert "peak" not in lines(60, progress(barred))[0]
    assert "vs yours" not in lines(40, progress(barred))[0]


def test_a_low_terminal_is_not_overfilled() -> None:
    for height in (12, 24, 60):
        out = console(80, height)
        view = LiveTable(out)
        view._take(progress(many(30), max_gain=0.4))
        view._take(Progress(ProgressKind.STOPPING, Standing(), message="stopping after the running probe"))
        out.print(view._render())
        assert len(printed(out)) == min(ROWS, height - OTHER_LINES) + 8
        assert len(printed(out)) < height
        assert max(map(len, printed(out))) <= 80


@pytest.mark.parametrize("width", [80, 120])
def test_a_running_search_is_drawn_as_before(
    width: int, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, now = many(7), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    next_one = configuration(24, precision="bf16")
    rounds = [trial(0, 9.0, of=FULL, confirmed=9.1), *trials[1:]]
    study = {"max_gain": 0.4, "folder": Path("reports/first")}
    events = [
        Progress(ProgressKind.PREPARING, Standing(), message="reading device, model and data"),
        progress(trials[:1], number=0, configuration=trials[0].configuration),
        replace(progress(trials, **study | {"max_gain": 5.33}), kind=ProgressKind.TRIAL),
        progress(trials, configuration=next_one, **study),
        replace(
            progress(rounds, **study),
            kind=ProgressKind.CONFIRMING,
            message=MESSAGES[Why.COMPARE],
            configuration=next_one,
        ),
        Progress(
            ProgressKind.STOPPING,
            Standing(),
            message="stopping after the running probe; press Ctrl-C again to stop at once",
        ),
        replace(
            progress(rounds, **study, seconds_to_go=30.0),
            kind=ProgressKind.FINISHING,
            message="one evaluation batch",
            configuration=None,
        ),
        replace(progress(rounds, **study), kind=ProgressKind.DONE, message="the budget is used"),
    ]
    out = console(width, 40)
    view = LiveTable(out)
    for event in events:
        view._take(event)
        now[0] += 84.4
        out.print(view._render())
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    golden(f"live_{width}.txt", re.sub(r"\x1b\[[\d;]*m", "", text))


@pytest.mark.parametrize(
    ("stays", "error", "is_there"), [(True, None, True), (False, None, False), (False, ValueError, True)]
)
def test_the_table_stays_at_the_end_where_no_answer_follows(
    stays: bool, error: type[Exception] | None, is_there: bool
) -> None:
    out = console(80)
    with contextlib.suppress(ValueError), LiveTable(out, stays) as watch:
        watch(progress(many(30)))
        if error:
            raise error
    end = out.file.getvalue().rpartition("\x1b[2K")[2]  # type: ignore[attr-defined]
    assert ("(baseline)" in end and "18 more in the report" in end) is is_there
    assert "Ctrl-C" not in end


def test_a_terminal_that_was_made_narrower_is_cleared_once() -> None:
    out = console(100)
    view = LiveTable(out)
    view._take(progress(many(3)))
    view._render()
    assert "\x1b[2J" not in out.file.getvalue()  # type: ignore[attr-defined]
    out.width = 60
    view._render()
    view._render()
    assert out.file.getvalue().count("\x1b[2J") == 1  # type: ignore[attr-defined]


def test_a_search_that_ends_before_its_first_trial_leaves_no_empty_table() -> None:
    out = console(80)
    with LiveTable(out) as watch:
        watch(Progress(ProgressKind.PREPARING, Standing(), message="estimating memory"))
    assert "configuration" not in out.file.getvalue().rpartition("\x1b")[2]  # type: ignore[attr-defined]
