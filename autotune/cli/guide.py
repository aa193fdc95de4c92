"""`autotune guide`: command of `autotune.guide`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter, given_options
from autotune.cli.completion import complete_task
from autotune.core.paths import shown

if TYPE_CHECKING:
    from autotune.commands.guide.ladder import Ladder


def guide(
    model: o.Model,
    global_batch_size: Annotated[
        int,
        typer.Option("--global-batch-size", "-b", help="Samples in one optimizer step, a multiple of 4."),
    ] = 4,
    task: Annotated[
        str | None,
        typer.Option(
            help=o.TASK,
            metavar="TASK",
            show_default="the guides' sequence-classification if the model can, else its own",
            autocompletion=complete_task,
        ),
    ] = None,
    sequence_length: o.SequenceLength = None,
    dataset: o.Dataset = None,
    dataset_split: o.DatasetSplit = "train",
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    tokenizer: o.Tokenizer = None,
    device: o.Device = "auto",
    memory_limit: o.MemoryLimit = None,
    headroom: o.Headroom = "5%",
    probe_timeout: o.ProbeTimeout = None,
    trust_remote_code: o.TrustRemoteCode = False,
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
) -> None:
    """Measure the methods of the Hugging Face memory guides."""
    arguments = locals()
    with ErrorReporter(as_json) as command:
        _run_guide(given_options(arguments), command, as_json)


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
