"""A search in a notebook: one display that is updated in place."""

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any

from autotune.core.units import counted
from autotune.report.live import text
from autotune.report.live.text import HEADER, ROWS, LiveView
from autotune.study.plan import Progress, Watch

STOPPING = "stopping after the running probe; interrupt again to stop at once"

SHORT = 20
"""Characters of a cell that is not broken into lines."""


def in_notebook() -> bool:
    """True if this process is the kernel of a notebook; IPython is not imported if it is not already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookTable(LiveView):
    """The search as an HTML table in the cell that runs it, updated at each event: no thread of its own."""

    def __enter__(self) -> Watch:
        display = import_module("IPython.display")
        self._handle: Any = display.display(display.HTML(page(self._last, 0.0)), display_id=True)
        return self._show

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last.trials:
            self._update(page(self._last, self._elapsed(), is_over=True))
        if isinstance(error, KeyboardInterrupt):
            kept = f"{counted(len(self._last.trials), 'trial')} kept. " if self._last.trials else ""
            line = f"Interrupted. {kept}Run the cell again, without fresh=True, to resume."
            vars(error)["_render_traceback_"] = lambda: [line]  # IPython shows this in place of a traceback

    def _show(self, progress: Progress) -> None:
        self._take(progress)
        self._update(page(self._last, self._elapsed(), STOPPING if self._notice else ""))

    def _update(self, html: str) -> None:
        if self._handle is not None:  # None if the front end takes no displays
            self._handle.update(import_module("IPython.display").HTML(html))


def page(progress: Progress, seconds: float, notice: str = "", is_over: bool = False) -> str:
    """The HTML of a search so many seconds after its begin; every text in it is escaped. is_over: its last one."""
    trials = progress.trials
    shown = text.ranked(progress, len(trials) if is_over else ROWS) if trials else ()
    rows = _table(HEADER, [text.cells(trial, progress) for trial in shown]) if shown else ""
    below = [text.count_text(progress, seconds), text.lead_text(progress)]
    if not is_over:
        below += [text.to_go_text(progress), text.gain_text(progress), text.now_text(progress), notice]
    return f"{rows}<p>{'<br>'.join(escape(line) for line in below if line)}</p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(_cell("th", cell) for cell in head)
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, text: str) -> str:
    style = "text-align:left; padding-right:1em" + ("; white-space:nowrap" if len(text) <= SHORT else "")
    return f'<{tag} style="{style}">{escape(text)}</{tag}>'
