"""Arguments and options that several commands share."""

from typing import Annotated

from typer import Argument, Option

from autotune.cli.completion import (
    complete_device,
    complete_gpu,
    complete_model,
    complete_objective,
    complete_sampler,
    complete_space,
    complete_study,
    complete_task,
)

FORMER = {"--space": "--search-space", "--memory": "--memory-limit", "--training-args": "--args"}
"""Former spelling of an option -> the present one; both work, the help shows the present one."""

FORMER_COMMANDS = {"spaces": "search-spaces"}

Model = Annotated[
    str,
    Argument(
        help="A hub id, a folder, a config JSON, or a built-in name such as gpt2-mini.", autocompletion=complete_model
    ),
]
Study = Annotated[str, Argument(help="Name or folder of a study.", autocompletion=complete_study)]

GlobalBatchSize = Annotated[
    int,
    Option(
        help="Samples per optimizer step over all ranks: exact in every trial. "
        "(Hugging Face calls it the effective or total train batch size.)"
    ),
]
Task = Annotated[
    str | None,
    Option(help="Task: causal-lm, masked-lm, ... Default: from the model's config.", autocompletion=complete_task),
]
SequenceLength = Annotated[int | None, Option(help="Tokens in the longest sample.")]
Dataset = Annotated[
    str | None,
    Option(help="A local txt, csv, jsonl or parquet file or folder, or a hub id. Default: synthetic random tokens."),
]
DatasetSplit = Annotated[str, Option(help="Split of the dataset.")]
TextColumn = Annotated[str | None, Option(help="Column with the text.")]
LabelColumn = Annotated[str | None, Option(help="Column with the label.")]
Tokenizer = Annotated[
    str | None, Option(help="Name or folder. Default: the model's own, else one trained on the dataset.")
]
SearchSpace = Annotated[
    str,
    Option(
        "--search-space",
        help="Search space: a name from `autotune search-spaces`, or a YAML file.",
        autocompletion=complete_space,
    ),
]
Fix = Annotated[list[str] | None, Option(help="NAME=VALUE: fix a setting. Repeatable.", metavar="NAME=VALUE")]
Only = Annotated[
    list[str] | None,
    Option(help="NAME=A,B: restrict a setting to these values. Repeatable.", metavar="NAME=A,B"),
]
Device = Annotated[str, Option(help="Device: auto, cpu, cuda or cuda:1.", autocompletion=complete_device)]
Gpu = Annotated[
    str | None,
    Option(
        help="GPU to estimate for, as V100, 4090 or H100. It need not be in this machine.", autocompletion=complete_gpu
    ),
]
MemoryLimit = Annotated[
    str | None, Option(help="Memory the training may use, as 600MiB or 24GiB. Default: what is free.")
]
Headroom = Annotated[str, Option(help="Share of the memory limit that must stay free.")]
ProbeTimeout = Annotated[
    str | None, Option(help="Time limit of one probe. Default: 10 x the first one's time, at least 60 s.")
]
Sampler = Annotated[
    str,
    Option(
        help="Sampler: physics (models memory and step time), tpe, gp, random, qmc or brute-force.",
        autocompletion=complete_sampler,
    ),
]
Objective = Annotated[
    str,
    Option(
        help="Objective: samples_per_second, tokens_per_second, or memory (lowest peak at no less than the baseline's speed).",
        autocompletion=complete_objective,
    ),
]
Args = Annotated[
    str | None, Option(help="Your own TrainingArguments, JSON or YAML: base of every trial, and the baseline.")
]
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help="Run code that comes with the model.")]
OutputDir = Annotated[str, Option(help="Folder of the report folders.")]
ReportTo = Annotated[
    list[str] | None,
    Option(
        help="Loggers that record the study, one run for all its trials: tensorboard, wandb, mlflow or trackio. "
        "Repeatable, or with commas. Default: none.",
        metavar="NAME",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print the result as one JSON object on standard output.")]
Quiet = Annotated[bool, Option("--quiet", help="Print the result only, without progress.")]
