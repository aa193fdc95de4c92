"""`autotune search`: command of `autotune.search`."""

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from autotune.cli import options as o
from autotune.cli.common import PAGE, WORDS, ErrorReporter, print_message, resuming
from autotune.core.errors import AutotuneError
from autotune.core.paths import shown
from autotune.core.request import SearchOptions
from autotune.core.units import counted

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult
    from autotune.study.plan import Progress


@o.takes(SearchOptions)
def search(
    context: typer.Context,
    model: o.Model,
    global_batch_size: o.GlobalBatchSize,
    server: o.Server = None,
    detach: Annotated[bool, Option("--detach", help="With --server: queue the search and end.")] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
    **options: Any,
) -> None:
    """Find the fastest settings for MODEL that fit this device."""
    given = {"model": model, "global_batch_size": global_batch_size, **options}
    with ErrorReporter(as_json) as command:
        started = context.obj or time.monotonic()
        if server or detach:
            from autotune.cli.remote import search_on

            result = search_on(server, given, command, detach=detach, as_json=as_json, quiet=quiet)
        else:
            result = _run_search(given, started, command, as_json, quiet)
        if result is None:
            return
        if as_json:
            command.json(result.to_dict())
        else:
            from autotune.report.summary import answer_lines, use_lines

            result = replace(result, command=context.meta.get(WORDS, ()))
            seconds = time.monotonic() - started
            print("\n".join(["", *answer_lines(result), "", *use_lines(result, seconds)]))


def _run_search(
    options: dict[str, Any], started: float, command: ErrorReporter, as_json: bool, quiet: bool
) -> "TuningResult":
    from autotune.core.request import tuning_request
    from autotune.space.user_arguments import read_user_arguments
    from autotune.study.limits import check_request

    # Wrong options are refused within a second: the search's imports take as long.
    request = tuning_request(**options | {"args": read_user_arguments(options["args"]).fields})
    check_request(request)

    from autotune.commands.finished import finished_study, request_fingerprint

    # The same command on a finished study prints its result before anything heavy is loaded.
    if not options["fresh"] and (result := finished_study(request, request_fingerprint(request))):
        return result
    from rich.console import Console

    from autotune.commands import search as workflow
    from autotune.report.live.views import watcher

    # By name: output of loggers goes to standard error, wherever the table is written.
    console = Console(file=sys.stderr if as_json else sys.stdout)
    latest: list[Progress] = []
    try:
        with watcher(console, quiet, stays=False) as watch:

            def both(progress: "Progress") -> None:
                latest[:] = [progress]
                watch(progress)

            return workflow.search(**options, watch=both, started=started)
    except (KeyboardInterrupt, AutotuneError):
        known = f"{counted(len(latest[0].trials), 'trial')} kept." if latest and latest[0].trials else ""
        command.when_interrupted = resuming(known or "What was measured before is kept.", options["fresh"])
        if latest:
            _print_best_so_far(latest[0])
        raise


def _print_best_so_far(progress: "Progress") -> None:
    from autotune.report.live.text import lead_words, short

    title, numbers = lead_words(progress)
    if title:
        lead = progress.best or progress.fastest
        what = f"{short(lead.configuration, progress.trials[0])}, {numbers}" if lead and numbers else ""
        print_message(f"{title.capitalize()}{f': {what}' if what else '.'}")
    if progress.folder is not None and (progress.folder / PAGE).exists():
        print(f"Report so far: {shown(progress.folder)}/{PAGE}", file=sys.stderr)
