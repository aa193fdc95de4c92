"""The command `autotune guide`: a thin door on `autotune.commands.guide.run`; nothing heavy is loaded before it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.common import ErrorReporter, shown, whole
from autotune.cli.completion import complete_device, complete_model, complete_task

if TYPE_CHECKING:
    from autotune.commands.guide.ladder import Ladder

Option = typer.Option


def guide(
    model: Annotated[
        str,
        typer.Argument(
            help="A hub id, a folder, a config JSON, or a built-in name such as bert-large.",
            autocompletion=complete_model,
        ),
    ],
    global_batch_size: Annotated[
        str, Option(help="Samples in one step, a multiple of 4: taken at once, or in the guides' 4 micro-steps.")
    ] = "4",
    task: Annotated[
        str | None,
        Option(
            help="Task. Default: the guides' sequence-classification where it can be done, else the model's own.",
            autocompletion=complete_task,
        ),
    ] = None,
    sequence_length: Annotated[
        str | None, Option(help="Tokens in the longest sample. Default: 512, or the most the model takes.")
    ] = None,
    dataset: Annotated[
        str | None,
        Option(help="A local txt, csv, jsonl or parquet file or folder, or a hub id. Default: random tokens."),
    ] = None,
    dataset_split: Annotated[str, Option(help="Split of the dataset.")] = "train",
    text_column: Annotated[str | None, Option(help="Column with the text.")] = None,
    label_column: Annotated[str | None, Option(help="Column with the label.")] = None,
    tokenizer: Annotated[
        str | None, Option(help="Name or folder. Default: the model's own, else one trained on the data.")
    ] = None,
    device: Annotated[str, Option(help="Device: auto, cpu, cuda or cuda:1.", autocompletion=complete_device)] = "auto",
    memory_limit: Annotated[
        str | None, Option(help="Memory the training may use, as 600MiB or 24GiB. Default: what is free.")
    ] = None,
    headroom: Annotated[str, Option(help="Share of the limit that must stay free.")] = "5%",
    probe_timeout: Annotated[
        str | None, Option(help="Deadline of one run. Default: 10 x the first one's, at least 60 s.")
    ] = None,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    output_dir: Annotated[str, Option(help="Where report folders go: guide-<model>-<device> below it.")] = "reports",
    as_json: Annotated[bool, Option("--json", help="Print the table as one JSON object on standard output.")] = False,
) -> None:
    """Walk the Hugging Face guides' ladder (accumulation, checkpointing, fp16, Adafactor, 8-bit Adam) with MODEL here."""
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("model", "global_batch_size", "as_json") and value is not None
    }
    with ErrorReporter(as_json) as command:
        if sequence_length is not None:
            options["sequence_length"] = whole("sequence_length", sequence_length)
        _walk(model, whole("global_batch_size", global_batch_size), options, command, as_json)


def _walk(model: str, global_batch_size: int, options: dict[str, Any], command: ErrorReporter, as_json: bool) -> None:
    from rich.console import Console

    from autotune.commands.guide.live import guide_watcher
    from autotune.commands.guide.run import check_climbed, guide

    known: list[Ladder] = []
    interrupted: KeyboardInterrupt | None = None
    with guide_watcher(Console(stderr=as_json)) as watch:

        def both(ladder: "Ladder", what: str) -> None:
            known[:] = [ladder]
            watch(ladder, what)

        try:
            known[:] = [guide(model, global_batch_size, watch=both, **options)]
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
    if known and as_json:
        command.json(known[0].to_dict() | {"folder": shown(Path(known[0].folder))})
    elif known:
        _print(known[0])
    if interrupted:
        done = f"{len(known[0].trials)} of {len(known[0].rungs)} rungs" if known else "no rung"
        command.when_interrupted = f"The table holds {done}; run the same command again to measure all from the start."
        raise interrupted
    check_climbed(known[0])


def _print(ladder: "Ladder") -> None:
    from autotune.commands.guide.table import ladder_lines

    where = shown(Path(ladder.folder))
    print("\n".join(["", *ladder_lines(ladder)]))
    print(f"\nPlot:  {where}/guide.svg\nTable: {where}/guide.md, guide.csv and guide.json")
