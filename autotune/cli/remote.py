"""`autotune search --server`: a search on a server, shown as one of this machine."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli.common import ErrorReporter
from autotune.core.errors import AutotuneError, InvalidRequest
from autotune.core.interrupt import Terminated
from autotune.core.text import printable

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult


def search_on(
    server: str | None, options: dict[str, Any], command: ErrorReporter, *, detach: bool, as_json: bool, quiet: bool
) -> "TuningResult | None":
    """Search on this server as `autotune search` does; None if it is left to the server; this is printed.

    Raises as there. KeyboardInterrupt leaves the search running, unless the user at the terminal cancels it.
    """
    if server is None:
        raise InvalidRequest("--detach leaves a search to a server.", "Pass --server URL too.")
    from rich.console import Console

    from autotune.report.live.views import watcher
    from autotune.service.client import connect

    client = connect(server)
    output_dir = options.pop("output_dir")
    search = client.submit(**options)
    search_id, page = search["id"], client.page(search["id"])
    if detach:
        if as_json:
            command.json({"id": search_id, "url": page})
        else:
            print(f"Queued: {page}")
        return None
    console = Console(file=sys.stderr if as_json else sys.stdout)
    print(f"Search {search_id}: {page}", file=sys.stderr)
    try:
        with watcher(console, quiet) as watch:
            client.follow(search_id, watch)
    except KeyboardInterrupt as interrupt:
        command.when_interrupted = f"The search continues: watch it, or cancel it, at {page}"
        if not isinstance(interrupt, Terminated) and _confirmed("Cancel the search on the server?"):
            client.cancel(search_id)
            command.when_interrupted = f"The search ends after its running probe: {page}"
        raise
    return client.result(search_id, output_dir)


def _confirmed(question: str) -> bool:
    """True if a user at the terminal says yes."""
    with contextlib.suppress(EOFError):
        return sys.stdin.isatty() and input(f"\n{question} [y/N] ").strip().lower() in ("y", "yes")
    return False


def check_server(server: str, command: ErrorReporter, as_json: bool) -> None:
    """Print what a server says of its readiness; ends with exit code 1 if it is not ready."""
    from autotune.service.client import connect

    answer = connect(server).readiness()
    if as_json:
        command.json(answer)
    else:
        print(f"{server}: {'ready' if answer['ready'] else 'not ready'}")
        print("\n".join(f"{printable(name):13} {printable(text)}" for name, text in answer.get("checks", {}).items()))
    if not answer["ready"]:
        raise typer.Exit(AutotuneError.exit_code)
