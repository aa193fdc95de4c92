"""The live table: calm at any width, whole at the end, in order after the terminal was made narrower."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autotune.core import Configuration, Outcome, Trial, Value
from autotune.report.live.terminal import OTHER_LINES, LiveTable, trials_table
from autotune.report.live.text import ROWS
from autotune.space.file import read_space
from autotune.study.plan import Progress
from tests.makers import configuration, ended, out_of_memory, trial

EVERY: dict[str, Value] = {name: values[0] for name, values in read_space("full").items() if name != "micro_batch_size"}
FULL = Configuration.exact(48, 8, EVERY)
"""A configuration of every setting: told whole, it fills ten lines of 80 columns."""


def console(width: int, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def progress(trials: list[Trial], **facts: object) -> Progress:
    feasible = [trial for trial in trials if trial.feasible]
    best = max(feasible, key=lambda trial: trial.samples_per_second or 0.0, default=None)
    state = {"number": len(trials), "configuration": FULL, "best": best, "probes_left": 5, "seconds_left": 61.0}
    return Progress("probing", tuple(trials), **state | facts)  # type: ignore[arg-type]


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


def lines(width: int, shown: Progress, rows: int, whole: bool = False) -> list[str]:
    out = console(width)
    out.print(trials_table(shown, width, rows, whole))
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_trial_has_one_line_and_no_column_ever_moves(width: int) -> None:
    trials = many()
    header = lines(width, progress(trials[:1]), ROWS)[0]
    for count in range(1, len(trials) + 1):
        shown = lines(width, progress(trials[:count]), ROWS)
        assert shown[0] == header
        assert len(shown) == 1 + min(count, ROWS)
        assert max(map(len, shown)) <= width


def test_the_best_is_marked_and_what_failed_says_how_at_any_width() -> None:
    wide, narrow = (lines(width, progress(many(7)), ROWS) for width in (80, 60))
    assert wide[3].split()[0] == narrow[3].split()[0] == "2*"
    assert "no memory" in wide[4]
    assert "no memory" in narrow[4]
    assert "outcome" not in narrow[0]
    assert "peak" not in lines(40, progress(many(7)), ROWS)[0]


def test_at_the_end_every_trial_is_there_and_told_whole() -> None:
    shown = lines(80, progress(many(30)), 30, whole=True)
    assert [line.split()[0].strip("*") for line in shown[1:] if line[:4].strip()] == [str(item) for item in range(30)]
    assert "compile=max_autotune" in "".join(line[6:38].rstrip() for line in shown)
    assert max(map(len, shown)) <= 80


def test_a_low_terminal_is_not_overfilled() -> None:
    for height in (10, 24, 60):
        out = console(80, height)
        table = LiveTable(out)
        table._take(progress(many(30), speedup=2.0, max_gain=0.4))
        table._take(Progress("stopping", (), message="stopping after the running probe"))
        out.print(table._render())
        shown = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert len(shown) == 1 + min(ROWS, height - OTHER_LINES) + 6
        assert len(shown) < height


def test_a_terminal_that_was_made_narrower_is_cleared_once() -> None:
    out = console(100)
    table = LiveTable(out)
    table._take(progress(many(3)))
    table._render()
    assert "\x1b[2J" not in out.file.getvalue()  # type: ignore[attr-defined]
    out.width = 60
    table._render()
    table._render()
    assert out.file.getvalue().count("\x1b[2J") == 1  # type: ignore[attr-defined]


def test_a_search_that_ends_before_its_first_trial_leaves_no_empty_table() -> None:
    out = console(80)
    with LiveTable(out) as watch:
        watch(Progress("preparing", (), message="estimating memory"))
    assert "configuration" not in out.file.getvalue().rpartition("\x1b")[2]  # type: ignore[attr-defined]
