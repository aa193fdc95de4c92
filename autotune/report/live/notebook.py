"""A search in a notebook: one display that is updated in place."""

import sys
from html import escape
from importlib import import_module
from typing import Any

from autotune.core.units import format_seconds
from autotune.report.live.text import HEADER, ROWS, LiveView, best_text, cells, lines
from autotune.report.notebook import html_table
from autotune.study.plan import Progress, Watch


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython is not imported where it is not already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookTable(LiveView):
    """The search as an HTML table in the cell that runs it, updated at each event: no thread of its own."""

    def __enter__(self) -> Watch:
        display = import_module("IPython.display")
        first = display.HTML("<p>reading device, model and data ...</p>")
        self._handle: Any = display.display(first, display_id=True)
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._update(page(self._last, self._elapsed(), len(self._last.trials), is_over=True))

    def _show(self, progress: Progress) -> None:
        self._take(progress)
        notice = self._notice.replace("press Ctrl-C", "interrupt") if progress.kind == "stopping" else ""
        self._update(page(self._last or progress, self._elapsed(), ROWS, notice))

    def _update(self, html: str) -> None:
        if self._handle is not None:  # None where the front end takes no displays
            self._handle.update(import_module("IPython.display").HTML(html))


def page(progress: Progress, seconds: float, rows: int, notice: str = "", is_over: bool = False) -> str:
    """The HTML of a search so many seconds after its begin; every text in it is escaped. rows: the latest trials."""
    shown = progress.trials[-rows:] if rows else ()
    table = html_table(HEADER, [cells(trial, progress.best, progress.trials[0], is_over) for trial in shown])
    below = [*lines(progress, seconds), notice]
    if is_over:
        below = [f"{format_seconds(seconds)} elapsed", best_text(progress).replace("best so far", "best")]
    return f"{table}<p>{'<br>'.join(escape(line) for line in below if line)}</p>"
