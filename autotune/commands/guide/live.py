"""Progress of a guide: a line for each method, and on a terminal the method that is being measured."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.commands.guide.ladder import Ladder
from autotune.commands.guide.table import latest_line
from autotune.report.live.views import is_lively


@contextlib.contextmanager
def guide_watcher(console: Console) -> Iterator[Callable[[Ladder, str], None]]:
    """A `watch` for `autotune.guide` that prints on this console."""
    doing, since = "reading device, model and data", time.monotonic()

    def status() -> Text:
        return Text(f"{doing} ... {time.monotonic() - since:.0f} s", style="dim", no_wrap=True, overflow="ellipsis")

    def watch(ladder: Ladder, what: str) -> None:
        nonlocal doing, since
        doing, since = what or doing, time.monotonic()
        if not what:
            console.print(latest_line(ladder), markup=False, highlight=False, soft_wrap=True)

    if not is_lively(console):
        yield watch
        return
    with Live(console=console, get_renderable=status, refresh_per_second=2, transient=True):
        yield watch
