"""`autotune project`: command of `result.project`."""

from typing import Annotated

import typer

from autotune.cli import options as o
from autotune.cli.common import ErrorReporter
from autotune.cli.completion import complete_link, complete_sharding


def project(
    study: o.StudyArgument,
    link: Annotated[
        str,
        typer.Option(
            help="Link between the GPUs: nvlink3, nvlink4, nvlink5, pcie4, pcie5, or a number in GB/s of one direction.",
            metavar="NAME",
            autocompletion=complete_link,
        ),
    ],
    ranks: Annotated[int, typer.Option(help="GPUs at most; 2, 4, 8 are projected up to this number.")] = 8,
    fsdp: Annotated[
        str,
        typer.Option(
            help="Sharding: none (DDP), shard_grad_op or full_shard.", metavar="NAME", autocompletion=complete_sharding
        ),
    ] = "none",
    output_dir: o.OutputDir = "reports",
    as_json: o.AsJson = False,
) -> None:
    """Project the answer to several GPUs; nothing is measured."""
    with ErrorReporter(as_json) as command:
        from autotune.commands.project.text import projection_lines
        from autotune.commands.result import TuningResult
        from autotune.study.store import study_folder

        projection = TuningResult.load(study_folder(study, output_dir)).project(link, ranks, fsdp)
        command.show(projection.to_dict(), projection_lines(projection))
