"""The live table of a search on a terminal: a row a trial, then what is probed, what is left, and the best so far."""

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.control import Control
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.core.units import format_seconds
from autotune.report.live.text import HEADER, best_text, bound_text, cells, doing_text, left_text
from autotune.study.plan import Progress

ROWS = 12
"""Latest trials that the live table shows where the terminal is high enough; all are in the report."""

BESIDE = 8
"""Lines of a terminal that are not rows of trials: the header, what stands below, and what was typed."""

WIDEST = 120
"""Columns of the table on the widest terminal: further apart its cells are no row any more."""

WITH_OUTCOME, WITH_PEAK = 72, 48
"""Columns of a terminal from which on these columns have room; without its own, an outcome stands for the speed."""

WIDTHS = {"#": 4, "outcome": 12, "samples/s": 16, "peak": 9}
"""Columns of the table that never change their width; the configuration has the rest."""


class LiveTable:
    """The search as it runs, overwritten in place; when it is over, the table of all its trials stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._last: Progress | None = None
        self._notice = ""
        self._begun = self._since = time.monotonic()
        self._width = console.width

    def __enter__(self) -> Callable[[Progress], None]:
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=2, transient=True)
        self._live.start()
        return self._take

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._last is not None and self._last.trials:
            self._console.print(trials_table(self._last, self._console.width, len(self._last.trials), whole=True))
            if any(trial.final.warnings for trial in self._last.trials):
                self._console.print(Text("? in warning: the report says why", style="dim"))

    def _take(self, progress: Progress) -> None:
        if progress.kind == "stopping":
            self._notice = progress.message
        else:
            self._last, self._since = progress, time.monotonic()

    def _render(self) -> RenderableType:
        self._clear_what_was_folded()
        now = time.monotonic()
        if self._last is None:
            return _line(f"reading device, model and data ({format_seconds(now - self._begun)})", "dim")
        rows = max(1, min(ROWS, self._console.height - BESIDE))
        elapsed = f"{format_seconds(now - self._begun)} elapsed, {left_text(self._last)}"
        return Group(
            trials_table(self._last, self._console.width, rows),
            _line(doing_text(self._last, now - self._since)),
            _line(elapsed, "dim"),
            *(_line(text, "dim") for text in (best_text(self._last), bound_text(self._last)) if text),
            *([_line(self._notice, "bold yellow")] if self._notice else []),
            _line(""),  # where the terminal writes ^C: at the end of a full line it would push all up
        )

    def _clear_what_was_folded(self) -> None:
        """A terminal made narrower has folded the lines that stand there: as many as nobody can count are cleared."""
        before, self._width = self._width, self._console.width
        if self._width < before:
            self._console.control(Control.home(), Control.clear())


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def trials_table(progress: Progress, width: int, rows: int, whole: bool = False) -> Table:
    """The last trials, each in one line of so many columns; whole: long configurations are folded instead of cut.

    The best one is marked. Numbers that change move nothing: every column has a width of its own.
    """
    trials = list(progress.trials)
    shown = [name for name in HEADER if width >= {"outcome": WITH_OUTCOME, "peak": WITH_PEAK}.get(name, 0)]
    table = Table(box=None, pad_edge=False, header_style="bold", width=min(width, WIDEST))
    for name in shown:
        if name == "configuration":
            table.add_column(name, ratio=1, no_wrap=not whole, overflow="fold" if whole else "ellipsis")
        else:
            justify: JustifyMethod = "left" if name == "outcome" else "right"
            # The last letter of these is a mark, or the blank that keeps its place.
            header = f"{name} " if name in ("#", "samples/s") else name
            table.add_column(header, width=WIDTHS[name], justify=justify, no_wrap=True, overflow="ellipsis")
    for trial in trials[-rows:]:
        texts = dict(zip(HEADER, cells(trial, progress.best, trials[0], whole), strict=True))
        if "outcome" not in shown and not trial.feasible:
            texts["samples/s"] = f"{texts['outcome']}  "
        is_best = progress.best is not None and trial.number == progress.best.number
        style = "bold green" if is_best else "" if trial.feasible else "dim"
        table.add_row(*(Text(texts[name]) for name in shown), style=style)
    return table
