"""A search in a notebook: one display that is updated in place."""

import html
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from autotune.core.units import format_seconds
from autotune.report.live.text import HEADER, best_text, bound_text, cells, doing_text, left_text
from autotune.study.plan import Progress

ROWS = 12
"""Latest trials that are shown while the search runs; all of them once it is over."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython is not imported where it is not already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookTable:
    """The search as an HTML table in the cell that runs it; a step forward, an update: no thread of its own."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._begun = time.monotonic()
        self._last: Progress | None = None

    def __enter__(self) -> Callable[[Progress], None]:
        shown = import_module("IPython.display")
        first = shown.HTML("<p>reading device, model and data ...</p>")
        self._handle = shown.display(first, display_id=True)
        return self._take

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._show(page(self._last, self._seconds(), len(self._last.trials), over=True))

    def _take(self, progress: Progress) -> None:
        if progress.kind != "stopping":
            self._last = progress
        said = progress.message.replace("press Ctrl-C", "interrupt") if progress.kind == "stopping" else ""
        self._show(page(self._last or progress, self._seconds(), ROWS, said))

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _show(self, text: str) -> None:
        if self._handle is not None:  # None where the front end takes no displays
            self._handle.update(import_module("IPython.display").HTML(text))


def page(progress: Progress, seconds: float, rows: int, notice: str = "", over: bool = False) -> str:
    """The HTML of where a search stands so many seconds after its begin, or ended; every text in it is escaped."""
    trials = list(progress.trials)
    shown = trials[-rows:] if rows else []
    body = "".join(
        f"<tr>{''.join(_cell('td', text) for text in cells(trial, progress.best, trials[0], over))}</tr>"
        for trial in shown
    )
    head = "".join(_cell("th", name) for name in HEADER)
    doing = doing_text(progress, 0.0).replace(" (0 s)", "")
    elapsed = f"{format_seconds(seconds)} elapsed"
    said = [doing, f"{elapsed}, {left_text(progress)}", best_text(progress), bound_text(progress), notice]
    if over:
        said = [elapsed, best_text(progress).replace("best so far", "best")]
    lines = "<br>".join(html.escape(text) for text in said if text)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{lines}</p>"


def _cell(kind: str, text: str) -> str:
    return f'<{kind} style="text-align: left">{html.escape(text)}</{kind}>'
