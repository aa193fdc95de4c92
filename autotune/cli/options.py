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
"""Former name of an option -> its present one; both work, the help shows the present one."""

FORMER_COMMANDS = {"spaces": "search-spaces"}

Text = str | None

MODEL = "A hub id, a folder, a config JSON, or a built-in name such as gpt2-mini."
Model = Annotated[str, Argument(help=MODEL, autocompletion=complete_model)]
Study = Annotated[str, Argument(help="Name or folder of a study.", autocompletion=complete_study)]

GLOBAL_BATCH_SIZE = "Samples per optimizer step over all ranks, in all trials (effective or total train batch size)."
GlobalBatchSize = Annotated[int, Option(help=GLOBAL_BATCH_SIZE)]
TASK = "Task: causal-lm, masked-lm, ... Default: from the model's config."
Task = Annotated[Text, Option(help=TASK, autocompletion=complete_task)]
SequenceLength = Annotated[int | None, Option(help="Tokens in the longest sample.")]
DATASET = "A local txt, csv, jsonl or parquet file or folder, or a hub id. Default: synthetic random tokens."
Dataset = Annotated[Text, Option(help=DATASET)]
DatasetSplit = Annotated[str, Option(help="Split of the dataset.")]
TextColumn = Annotated[Text, Option(help="Column with the text.")]
LabelColumn = Annotated[Text, Option(help="Column with the label.")]
Tokenizer = Annotated[Text, Option(help="Name or folder. Default: the model's own, else one trained on the dataset.")]
SPACE = "Search space: a name from `autotune search-spaces`, or a YAML file."
SearchSpace = Annotated[str, Option("--search-space", help=SPACE, autocompletion=complete_space)]
Texts = list[str] | None
Fix = Annotated[Texts, Option(help="NAME=VALUE: fix a setting. Repeatable.", metavar="NAME=VALUE")]
Only = Annotated[Texts, Option(help="NAME=A,B: restrict a setting to these values. Repeatable.", metavar="NAME=A,B")]
Device = Annotated[str, Option(help="Device: auto, cpu, cuda or cuda:1.", autocompletion=complete_device)]
GPU = "GPU to estimate for, as V100, 4090 or H100. It need not be in this machine."
Gpu = Annotated[Text, Option(help=GPU, autocompletion=complete_gpu)]
MEMORY_LIMIT = "Memory the training may use, as 600MiB or 24GiB. Default: what is free."
MemoryLimit = Annotated[Text, Option(help=MEMORY_LIMIT)]
Headroom = Annotated[str, Option(help="Share of the memory limit that must stay free.")]
PROBE_TIMEOUT = "Time limit of one probe. Default: 10 x the first one's time, at least 60 s."
ProbeTimeout = Annotated[Text, Option(help=PROBE_TIMEOUT)]
SAMPLER = "Sampler: physics (models memory and step time), tpe, gp, random, qmc or brute-force."
Sampler = Annotated[str, Option(help=SAMPLER, autocompletion=complete_sampler)]
OBJECTIVE = "Objective: samples_per_second, tokens_per_second, or memory (lowest peak, no slower than the baseline)."
Objective = Annotated[str, Option(help=OBJECTIVE, autocompletion=complete_objective)]
Args = Annotated[Text, Option(help="Your own TrainingArguments, JSON or YAML: base of all trials, and the baseline.")]
TrustRemoteCode = Annotated[bool, Option("--trust-remote-code", help="Run code that comes with the model.")]
OutputDir = Annotated[str, Option(help="Folder of the report folders.")]
REPORT_TO = (
    "Loggers of the study, one run for all trials: tensorboard, wandb, mlflow or trackio. Repeatable, or with commas. "
    "Default: none."
)
ReportTo = Annotated[Texts, Option(help=REPORT_TO, metavar="NAME")]
Server = Annotated[Text, Option(help="URL of a server of `autotune serve`, as https://tune.example.org.")]
AsJson = Annotated[bool, Option("--json", help="Print the result as one JSON object on standard output.")]
Quiet = Annotated[bool, Option("--quiet", help="Print the result only, without progress.")]
