"""Arguments and options that several commands share."""

from typing import Annotated

from typer import Argument, Option

from autotune.cli.completion import (
    complete_device,
    complete_gpu,
    complete_model,
    complete_objective,
    complete_sampler,
    complete_setting,
    complete_space,
    complete_study,
    complete_task,
)

FORMER = {"--space": "--search-space", "--memory": "--memory-limit", "--training-args": "--args"}
"""Former name of an option -> its present one; both work, the help shows the present one."""

FORMER_COMMANDS = {"spaces": "search-spaces"}

Text = str | None
Texts = list[str] | None

MODEL = "Hub id, folder, config JSON, or a built-in name such as gpt2-mini."
Model = Annotated[str, Argument(help=MODEL, metavar="MODEL", autocompletion=complete_model)]
Study = Annotated[str, Argument(help="Name or folder of a study.", metavar="STUDY", autocompletion=complete_study)]

GLOBAL_BATCH_SIZE = "Samples per optimizer step over all GPUs (effective batch size)."
GlobalBatchSize = Annotated[int, Option("--global-batch-size", "-b", help=GLOBAL_BATCH_SIZE)]
TASK = "Task, as causal-lm or masked-lm."
FROM_CONFIG = "from the model's config"
Task = Annotated[Text, Option(help=TASK, metavar="TASK", show_default=FROM_CONFIG, autocompletion=complete_task)]
SEQUENCE_LENGTH = "Tokens in the longest sample."
SequenceLength = Annotated[int | None, Option(help=SEQUENCE_LENGTH, show_default="512, or the most the model takes")]
DATASET = "File or folder (txt, csv, jsonl, parquet), or a hub id."
Dataset = Annotated[Text, Option(help=DATASET, metavar="PATH|HUB_ID", show_default="random tokens")]
DatasetSplit = Annotated[str, Option(help="Split of the dataset.", metavar="NAME")]
TextColumn = Annotated[
    Text, Option(help="Column with the text.", metavar="NAME", show_default="the only text, or by name")
]
LabelColumn = Annotated[Text, Option(help="Column with the label.", metavar="NAME", show_default="by name")]
OWN_TOKENIZER = "the model's, else trained on the dataset"
Tokenizer = Annotated[Text, Option(help="Name or folder.", metavar="PATH|HUB_ID", show_default=OWN_TOKENIZER)]
SPACE = "Search space: a name from `autotune search-spaces`, or a YAML file."
SearchSpace = Annotated[str, Option("--search-space", help=SPACE, metavar="NAME|FILE", autocompletion=complete_space)]
Fix = Annotated[
    Texts,
    Option(help="Fix a setting at this value. Repeatable.", metavar="NAME=VALUE", autocompletion=complete_setting),
]
Only = Annotated[
    Texts,
    Option(help="Try only these values of a setting. Repeatable.", metavar="NAME=A,B", autocompletion=complete_setting),
]
DEVICE = "Device: auto, cpu, cuda or cuda:1."
Device = Annotated[str, Option(help=DEVICE, metavar="NAME", autocompletion=complete_device)]
GPU = "GPU to estimate for, as V100, 4090 or H100. It need not be in this machine."
Gpu = Annotated[Text, Option(help=GPU, metavar="NAME", autocompletion=complete_gpu)]
MEMORY_LIMIT = "Memory the training may use, as 24GiB."
MemoryLimit = Annotated[Text, Option(help=MEMORY_LIMIT, metavar="SIZE", show_default="what is free")]
Headroom = Annotated[str, Option(help="Share of the memory limit that must stay free.", metavar="PERCENT")]
OF_FIRST = "10 x the first one's time, at least 60 s"
ProbeTimeout = Annotated[Text, Option(help="Time limit of one trial.", metavar="DURATION", show_default=OF_FIRST)]
SAMPLER = "Sampler: physics, tpe, gp, random, qmc or brute-force."
Sampler = Annotated[str, Option(help=SAMPLER, metavar="NAME", autocompletion=complete_sampler)]
OBJECTIVE = "Objective: samples_per_second or tokens_per_second."
Objective = Annotated[str, Option(help=OBJECTIVE, metavar="NAME", autocompletion=complete_objective)]
Args = Annotated[Text, Option(help="Your TrainingArguments, JSON or YAML: the baseline.", metavar="FILE")]
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help="Run code that comes with the model.")]
OutputDir = Annotated[str, Option(help="Folder of the report folders.", metavar="PATH")]
REPORT_TO = "Loggers: tensorboard, wandb, mlflow or trackio. Repeatable, or with commas."
ReportTo = Annotated[Texts, Option(help=REPORT_TO, metavar="NAME")]
SERVER = "Server of `autotune serve`, as https://tune.example.org."
Server = Annotated[Text, Option(help=SERVER, metavar="URL", show_default="this machine")]
AsJson = Annotated[bool, Option("--json", help="Print the result as one JSON object.")]
Quiet = Annotated[bool, Option("--quiet", help="Print the result only, without progress.")]
