"""What a walk of the guides' ladder shows while it runs: a line for each rung, and on a terminal what is being measured."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from autotune.commands.guide.ladder import Ladder
from autotune.commands.guide.table import rung_line
from autotune.report.live.views import is_lively


@contextlib.contextmanager
def guide_watcher(console: Console) -> Iterator[Callable[[Ladder, str], None]]:
    """What to give to `run_guide(watch=...)`: says what happens on this console."""
    doing, since = ["reading device, model and data"], [time.monotonic()]

    def now() -> Text:
        seconds = f"{time.monotonic() - since[0]:.0f} s"
        return Text(f"{doing[0]} ... {seconds}", style="dim", no_wrap=True, overflow="ellipsis")

    def take(ladder: Ladder, what: str) -> None:
        doing[:], since[:] = [what or doing[0]], [time.monotonic()]
        if not what:
            console.print(rung_line(ladder), markup=False, highlight=False, soft_wrap=True)

    if not is_lively(console):
        yield take
        return
    with Live(console=console, get_renderable=now, refresh_per_second=2, transient=True):
        yield take
