"""`autotune estimate`: a thin door on `autotune.commands.estimate.run`."""

from typing import Annotated

import typer

from autotune.cli.common import ErrorReporter, whole
from autotune.cli.completion import complete_gpu, complete_model, complete_space, complete_task

Option = typer.Option


def estimate(
    model: Annotated[
        str,
        typer.Argument(
            help="A hub id, a folder, a config JSON, or a built-in name such as llama-8b.",
            autocompletion=complete_model,
        ),
    ],
    global_batch_size: Annotated[str, Option(help="Samples in one optimizer step, over all ranks.")],
    memory: Annotated[str | None, Option(help="Memory of the device you mean, as 24GiB.")] = None,
    gpu: Annotated[
        str | None,
        Option(help="The card you mean, as V100, 4090 or H100. It need not be here.", autocompletion=complete_gpu),
    ] = None,
    task: Annotated[
        str | None,
        Option(help="Task: causal-lm, masked-lm, ... Default: from the model's config.", autocompletion=complete_task),
    ] = None,
    sequence_length: Annotated[str | None, Option(help="Tokens in the longest sample.")] = None,
    space: Annotated[
        str,
        Option(help="Search space: a name from `autotune spaces`, or a YAML file.", autocompletion=complete_space),
    ] = "default",
    fix: Annotated[
        list[str] | None, Option(help="NAME=VALUE: fix a setting. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="NAME=A,B: only these values of a setting. Repeatable.", metavar="NAME=A,B")
    ] = None,
    device: Annotated[
        str, Option(help="Device: cuda, or cpu for the bytes that a training on the CPU allocates.")
    ] = "cuda",
    headroom: Annotated[str, Option(help="Share of the memory that must stay free.")] = "5%",
    args: Annotated[str | None, Option(help="Your own TrainingArguments, JSON or YAML.")] = None,
    training_args: Annotated[str | None, Option(help="Former name of --args.", hidden=True)] = None,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print the forecast as one JSON object.")] = False,
) -> None:
    """Say what memory MODEL's training would need and what fits, from its config alone: no device, no weights."""
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("model", "global_batch_size", "as_json") and value is not None
    }
    with ErrorReporter(as_json) as answer:
        if "sequence_length" in options:
            options["sequence_length"] = whole("sequence_length", options["sequence_length"])
        size = whole("global_batch_size", global_batch_size)
        from autotune.commands.estimate.run import estimate as forecast_of
        from autotune.commands.estimate.text import forecast_lines

        forecast = forecast_of(model, size, **options)
        told = forecast.to_dict()
        if as_json:
            answer.json(told)
        else:
            print("\n".join(forecast_lines(told)))
        forecast.check()
