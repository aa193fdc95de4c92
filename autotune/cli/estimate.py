"""`autotune estimate`: command of `autotune.estimate`."""

from typing import Annotated

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter, given_options


def estimate(
    model: o.Model,
    global_batch_size: o.GlobalBatchSize,
    memory_limit: Annotated[str | None, typer.Option(help="Memory of the device to estimate for, as 24GiB.")] = None,
    gpu: o.Gpu = None,
    task: o.Task = None,
    sequence_length: o.SequenceLength = None,
    space: o.SearchSpace = "default",
    fix: o.Fix = None,
    only: o.Only = None,
    device: Annotated[
        str, typer.Option(help="Device: cuda, or cpu for the bytes that a training on the CPU allocates.")
    ] = "cuda",
    headroom: o.Headroom = "5%",
    args: o.Args = None,
    trust_remote_code: o.TrustRemoteCode = False,
    as_json: o.AsJson = False,
) -> None:
    """Estimate the memory that training MODEL needs and what fits, from its config alone: no device, no weights."""
    arguments = locals()
    with ErrorReporter(as_json) as command:
        from autotune.commands.estimate.run import estimate
        from autotune.commands.estimate.text import forecast_lines

        forecast = estimate(**given_options(arguments))
        if as_json:
            command.json(forecast.to_dict())
        else:
            print("\n".join(forecast_lines(forecast.to_dict())))
        forecast.check()
