"""`autotune guide`: command of `autotune.guide`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.core.paths import shown
from autotune.core.request import GuideOptions

if TYPE_CHECKING:
    from autotune.commands.guide.ladder import Ladder


@o.takes(GuideOptions)
def guide(
    model: o.Model,
    global_batch_size: Annotated[
        int,
        typer.Option("--global-batch-size", "-b", help="Samples in one optimizer step, a multiple of 4."),
    ] = 4,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Measure the methods of the Hugging Face memory guides."""
    with ErrorReporter(as_json) as command:
        _run_guide({"model": model, "global_batch_size": global_batch_size, **options}, command, as_json)


def _run_guide(options: dict[str, Any], command: ErrorReporter, as_json: bool) -> None:
    from rich.console import Console

    from autotune.commands.guide.run import check_any_fits, guide, guide_watcher

    latest: list[Ladder] = []
    interrupted: KeyboardInterrupt | None = None
    with guide_watcher(Console(stderr=as_json)) as watch:

        def both(ladder: "Ladder", doing: str) -> None:
            latest[:] = [ladder]
            watch(ladder, doing)

        try:
            latest[:] = [guide(**options, watch=both)]
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
    if latest and as_json:
        command.json(latest[0].to_dict() | {"folder": shown(Path(latest[0].folder))})
    elif latest:
        _print(latest[0])
    if interrupted:
        done = f"{len(latest[0].trials)} of {len(latest[0].methods)} methods" if latest else "no method"
        command.when_interrupted = f"The table has {done}; run the same command again to measure all from the start."
        raise interrupted
    check_any_fits(latest[0])


def _print(ladder: "Ladder") -> None:
    from autotune.commands.guide.table import ladder_lines

    folder = shown(Path(ladder.folder))
    print("\n".join(["", *ladder_lines(ladder)]))
    print(f"\nPlot:  {folder}/guide.svg\nTable: {folder}/guide.md, guide.csv and guide.json")
