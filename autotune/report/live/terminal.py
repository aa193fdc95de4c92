"""Live table of a search on a terminal: how far it is, the trials by speed, and what runs now.

first                                                      4 of 20   1:24
prepare ✓  search ████░░░░░░░░░░░░  check             about 6 min to go

   configuration               samples/s   speed-up        peak
*  8x1 bf16 2 workers         41.2 ± 0.9      1.62x     127 MiB
   8x1 fp32 (baseline)        25.4 ± 0.8      1.00x     118 MiB

now  4x2 bf16 adafactor, 6 s                     at most 12% more to gain
* best so far   Ctrl-C keeps what is measured

Only what is proven to be faster has the star.
"""

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

from autotune.core.units import format_seconds
from autotune.report.live import text
from autotune.report.live.text import HEADER, ROWS, LiveView, fitted
from autotune.report.trial_text import NOT_PROVEN, is_same
from autotune.study.plan import Progress, Watch

OTHER_LINES = 10
"""Lines of a terminal that are not rows of trials: those above and below, and what was typed."""

WIDEST = 100
"""Columns at most: further apart the cells are hard to read as a row."""

WIDTHS = (5, 16, 10, 11)
"""Columns of HEADER's cells but the configuration's, which has the rest."""

WITH_PEAK, WITH_RATIO = 64, 48
"""Columns of a terminal from which on these columns have room."""


class LiveTable(LiveView):
    """The search as it runs, overwritten in place; if it is interrupted or fails the table stays.

    stays: so it does at the end.
    """

    def __init__(self, console: Console, stays: bool = True) -> None:
        super().__init__()
        self._console, self._width, self._stays = console, console.width, stays
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Watch:
        self._live.start()
        return self._take

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        if self._last.trials and (self._stays or kind):
            self._console.print(Group(*table(self._last, self._console.width, ROWS), _legend(self._last, ""), ""))

    def _render(self) -> RenderableType:
        self._clear_wrapped_lines()
        last, width = self._last, min(self._console.width, WIDEST)
        since = time.monotonic() - self._since
        title = last.folder.name if last.folder else "autotune"
        rows = max(1, min(ROWS, self._console.height - OTHER_LINES))
        return Group(
            _line(_apart(title, text.count_text(last, self._elapsed()), width), "bold"),
            _line(_apart(text.phases_text(last, min(16, max(4, width - 60))), text.to_go_text(last, since), width)),
            *([_line(""), *table(last, width, rows)] if last.trials else []),
            _line(""),
            _line(_apart(f"now  {text.now_text(last)}", text.gain_text(last), width, f", {format_seconds(since)}")),
            _line(f"  {self._notice}", "bold yellow") if self._notice else _legend(last),
            _line(""),  # where the terminal writes ^C: at the end of a full line it would push all up
        )

    def _clear_wrapped_lines(self) -> None:
        """A terminal made narrower has wrapped the lines on it into an unknown number: everything is cleared."""
        before, self._width = self._width, self._console.width
        if self._width < before:
            self._console.control(Control.home(), Control.clear())


def _line(content: str, style: str = "") -> Text:
    return Text(content, style=style, overflow="ellipsis", no_wrap=True)


def _apart(left: str, right: str, width: int, end: str = "") -> str:
    """Two texts at both ends of an indented line; the left one, but for its end, is cut at a word if they do not fit."""
    right = f"   {right}" if right else ""
    left = fitted(left, max(8, width - 2 - len(right) - len(end))) + end
    return f"  {left}{right.rjust(width - 2 - len(left))}".rstrip()


def _legend(progress: Progress, end: str = "Ctrl-C keeps what is measured") -> Text:
    trials = progress.trials
    words = {
        "* best so far": progress.best,
        f"fastest first{NOT_PROVEN}": progress.fastest and len(trials) > 1,
        "x cannot win": any(trial.disqualified_reason for trial in trials),
        "? uncertain": any(text.is_uncertain(trial, progress) for trial in trials),
        f"{len(trials) - ROWS} more in the report": len(trials) > ROWS,
        end: end,
    }
    return _line("  " + "   ".join(word for word, is_shown in words.items() if is_shown), "dim")


def table(progress: Progress, width: int, rows: int) -> list[Text]:
    """A header and the fastest trials, each in one line of so many columns, which no number moves."""
    widths = [size for size, least in zip(WIDTHS, (0, 0, WITH_RATIO, WITH_PEAK), strict=True) if width >= least]
    width = min(width, WIDEST)
    room = width - sum(widths)

    def line(texts: tuple[str, ...], style: str) -> Text:
        mark, configuration, speed, *numbers = texts
        if not any(numbers):  # a failure's words begin where the numbers do
            speed = speed.ljust(widths[1] - 2)
        shown = "".join(cell.rjust(size) for cell, size in zip((speed, *numbers), widths[1:], strict=False))
        return _line(f"  {mark:<3}{fitted(configuration, room):<{room}}{shown}".rstrip(), style)

    lines = [line((*HEADER[:2], f"{HEADER[2]}  ", *HEADER[3:]), "bold")]
    for trial in text.ranked(progress, rows):
        style = "bold green" if is_same(trial, progress.best) else "" if trial.feasible else "dim"
        lines.append(line(text.cells(trial, progress, sure="  "), style))
    return lines
