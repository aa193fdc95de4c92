"""Live table of a search on a terminal: a row a trial, then what is probed, what is left, and the best so far."""

import time
from types import TracebackType

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.control import Control
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.core.units import format_seconds
from autotune.report.live.text import HEADER, ROWS, LiveView, cells, lines
from autotune.report.trial_text import is_same
from autotune.study.plan import Progress, Watch

OTHER_LINES = 8
"""Lines of a terminal that are not rows of trials: the header, those below, and what was typed."""

WIDEST = 120
"""Columns of the table at most: further apart its cells are hard to read as a row."""

WITH_OUTCOME, WITH_PEAK = 72, 48
"""Columns of a terminal from which on these columns have room; without its own, an outcome is in place of the speed."""

WIDTHS = {"#": 4, "outcome": 12, "samples/s": 16, "peak": 9}
"""Columns of a fixed width; the configuration has the rest."""


class LiveTable(LiveView):
    """The search as it runs, overwritten in place; at the end the table of all its trials stays."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console, self._width = console, console.width
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Watch:
        self._live.start()
        return self._take

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._last is not None and self._last.trials:
            self._console.print(trials_table(self._last, self._console.width, len(self._last.trials), whole=True))
            if any(trial.final.warnings for trial in self._last.trials):
                self._console.print(Text("? has a warning: see the report", style="dim"))

    def _render(self) -> RenderableType:
        self._clear_wrapped_lines()
        if self._last is None:
            return _line(f"reading device, model and data ({format_seconds(self._elapsed())})", "dim")
        rows = max(1, min(ROWS, self._console.height - OTHER_LINES))
        doing, *others = lines(self._last, self._elapsed(), time.monotonic() - self._since)
        return Group(
            trials_table(self._last, self._console.width, rows),
            _line(doing),
            *(_line(text, "dim") for text in others),
            *([_line(self._notice, "bold yellow")] if self._notice else []),
            _line(""),  # where the terminal writes ^C: at the end of a full line it would push all up
        )

    def _clear_wrapped_lines(self) -> None:
        """A terminal made narrower has wrapped the lines on it into an unknown number: everything is cleared."""
        before, self._width = self._width, self._console.width
        if self._width < before:
            self._console.control(Control.home(), Control.clear())


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def trials_table(progress: Progress, width: int, rows: int, whole: bool = False) -> Table:
    """The last trials, each in one line of so many columns; whole: long configurations are wrapped instead of cut.

    The best one is marked. Every column has a fixed width, so that numbers that change move nothing.
    """
    trials = list(progress.trials)
    shown = [name for name in HEADER if width >= {"outcome": WITH_OUTCOME, "peak": WITH_PEAK}.get(name, 0)]
    table = Table(box=None, pad_edge=False, header_style="bold", width=min(width, WIDEST))
    for name in shown:
        if name == "configuration":
            table.add_column(name, ratio=1, no_wrap=not whole, overflow="fold" if whole else "ellipsis")
        else:
            justify: JustifyMethod = "left" if name == "outcome" else "right"
            # The last character of these is a mark, or a blank in its place.
            header = f"{name} " if name in ("#", "samples/s") else name
            table.add_column(header, width=WIDTHS[name], justify=justify, no_wrap=True, overflow="ellipsis")
    for trial in trials[-rows:]:
        texts = dict(zip(HEADER, cells(trial, progress.best, trials[0], whole), strict=True))
        if "outcome" not in shown and not trial.feasible:
            texts["samples/s"] = f"{texts['outcome']}  "
        style = "bold green" if is_same(trial, progress.best) else "" if trial.feasible else "dim"
        table.add_row(*(Text(texts[name]) for name in shown), style=style)
    return table
