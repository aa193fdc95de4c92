"""What a search shows while it runs."""

import io

from rich.console import Console

from autotune.live import LiveTable, PlainLines, Silent, watcher
from autotune.plan import Progress
from autotune.trial import Trial
from tests.makers import configuration, out_of_memory, trial

TRIALS = (trial(0, 40.0), Trial(1, configuration(48), out_of_memory(configuration(48))))


def progress(kind: str, number: int) -> Progress:
    return Progress(
        kind,
        TRIALS[: number + 1],
        number=number,
        configuration=TRIALS[number].configuration,
        trial=TRIALS[number],
        best=TRIALS[0],
        probes_left=5,
        seconds_left=61.0,
    )


def console(width: int, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def test_a_log_gets_one_line_for_each_trial_with_best_and_what_is_left() -> None:
    out = console(80, terminal=False)
    with PlainLines(out) as watch:
        watch(progress("probing", 0))
        watch(progress("trial", 0))
        watch(progress("trial", 1))
    lines = out.file.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("trial 0: 8 x ")
    assert "best so far 40" in lines[0]
    assert "5 probe(s) left, 1 min 1 s left" in lines[0]
    assert "out of memory" in lines[1]


def test_the_table_fits_eighty_columns_and_marks_the_best() -> None:
    out = console(80, terminal=True)
    with LiveTable(out) as watch:
        watch(progress("trial", 1))
    text = out.file.getvalue()
    assert "0*" in text
    assert "no memory" in text
    shown = [line for line in text.split("\n") if "\x1b" not in line]
    assert max(map(len, shown)) <= 80


def test_a_terminal_gets_a_table_a_log_gets_lines_and_quiet_gets_nothing() -> None:
    assert isinstance(watcher(console(80, terminal=True), quiet=False), LiveTable)
    assert isinstance(watcher(console(80, terminal=False), quiet=False), PlainLines)
    assert isinstance(watcher(console(80, terminal=True), quiet=True), Silent)
