"""`autotune search`: a thin door on `autotune.commands.search`."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.common import PAGE, ErrorReporter, resuming, shown, whole
from autotune.cli.completion import (
    complete_device,
    complete_model,
    complete_objective,
    complete_sampler,
    complete_space,
    complete_task,
)

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult

Option = typer.Option


def search(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A hub id, a folder, a config JSON, or a built-in name such as gpt2-mini.",
            autocompletion=complete_model,
        ),
    ],
    global_batch_size: Annotated[
        str,
        Option(
            help="Samples in one optimizer step, over all ranks: exact in every trial. "
            "(Hugging Face calls it the effective or total train batch size.)"
        ),
    ],
    task: Annotated[
        str | None,
        Option(help="Task: causal-lm, masked-lm, ... Default: from the model's config.", autocompletion=complete_task),
    ] = None,
    sequence_length: Annotated[str | None, Option(help="Tokens in the longest sample.")] = None,
    dataset: Annotated[
        str | None,
        Option(
            help="A local txt, csv, jsonl or parquet file or folder, or a hub id. Default: synthetic random tokens."
        ),
    ] = None,
    dataset_split: Annotated[str, Option(help="Split of the dataset.")] = "train",
    text_column: Annotated[str | None, Option(help="Column with the text.")] = None,
    label_column: Annotated[str | None, Option(help="Column with the label.")] = None,
    tokenizer: Annotated[
        str | None, Option(help="Name or folder. Default: the model's own, else one trained on the data.")
    ] = None,
    space: Annotated[
        str,
        Option(help="Search space: a name from `autotune spaces`, or a YAML file.", autocompletion=complete_space),
    ] = "default",
    fix: Annotated[
        list[str] | None, Option(help="NAME=VALUE: fix a setting. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    only: Annotated[
        list[str] | None,
        Option(help="NAME=A,B: search only these values of a setting. Repeatable.", metavar="NAME=A,B"),
    ] = None,
    device: Annotated[str, Option(help="Device: auto, cpu, cuda or cuda:1.", autocompletion=complete_device)] = "auto",
    memory_limit: Annotated[
        str | None, Option(help="Memory the training may use, as 600MiB or 24GiB. Default: what is free.")
    ] = None,
    headroom: Annotated[str, Option(help="Share of the limit that must stay free.")] = "5%",
    n_trials: Annotated[str, Option(help="Probes in all, the baseline's among them, confirmations not.")] = "20",
    timeout: Annotated[
        str | None,
        Option(
            help="Time of the whole command, as 90s, 10m or 1h: start, probes, confirmation and checks. "
            "What it is too short for is left out and named."
        ),
    ] = None,
    probe_timeout: Annotated[
        str | None, Option(help="Deadline of one probe. Default: 10 x the baseline's, at least 60 s.")
    ] = None,
    confirmation_rounds: Annotated[
        str,
        Option(
            help="Rounds in which the best trials and the baseline are measured again; up to twice as many while it is "
            "open which one is faster."
        ),
    ] = "3",
    sampler: Annotated[
        str,
        Option(
            help="Sampler: physics (ours: memory and time are modelled), tpe, gp, random, qmc or brute-force.",
            autocompletion=complete_sampler,
        ),
    ] = "physics",
    margin: Annotated[
        str, Option(help="Stop once nothing untried can beat the best by more than this share (sampler physics).")
    ] = "1%",
    training_steps: Annotated[
        str | None, Option(help="Steps of the run this is for: a search that cannot save its own time ends.")
    ] = None,
    no_history: Annotated[
        bool, Option("--no-history", help="Leave aside what past searches on this device taught.")
    ] = False,
    keep_numerics: Annotated[
        bool, Option("--keep-numerics", help="Leave precision, optimizer, … as yours: nothing that learns differently.")
    ] = False,
    objective: Annotated[
        str,
        Option(
            help="Objective: samples_per_second, tokens_per_second, or memory (the least, no slower than the baseline).",
            autocompletion=complete_objective,
        ),
    ] = "samples_per_second",
    seed: Annotated[str, Option(help="Seed of the sampler.")] = "0",
    args: Annotated[
        str | None, Option(help="Your own TrainingArguments, JSON or YAML: base of every trial, and the baseline.")
    ] = None,
    training_args: Annotated[str | None, Option(help="Former name of --args.", hidden=True)] = None,
    require_parity: Annotated[
        bool, Option("--require-parity", help="Compare losses with fp32's over 30 steps, however long it takes.")
    ] = False,
    allow_loss_difference: Annotated[
        bool,
        Option(
            "--allow-loss-difference",
            help="Allow a configuration to win whose losses over 30 steps differ from fp32's. Default: it cannot.",
        ),
    ] = False,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    output_dir: Annotated[str, Option(help="Where report folders go.")] = "reports",
    report_to: Annotated[
        list[str] | None,
        Option(
            help="Loggers to tell the study, one run for all its trials: tensorboard, wandb, mlflow or trackio; "
            "probes never log. Repeatable, or with commas. Default: none.",
            metavar="NAME",
        ),
    ] = None,
    study_name: Annotated[str | None, Option(help="Name of the study. Default: <model>-<task>-gb<N>-<device>.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Begin the study again instead of going on with it.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the answer as one JSON object on standard output.")] = False,
    quiet: Annotated[bool, Option("--quiet", help="Print the answer only.")] = False,
) -> None:
    """Find the fastest configuration that fits, for MODEL at a global batch size."""
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("context", "model", "global_batch_size", "as_json", "quiet") and value is not None
    }
    started = context.obj or time.monotonic()
    with ErrorReporter(as_json) as answer:
        options |= {
            name: whole(name, options[name])
            for name in ("n_trials", "confirmation_rounds", "seed", "sequence_length", "training_steps")
            if name in options
        }
        size = whole("global_batch_size", global_batch_size)
        result = _run_search(model, size, options | {"started": started}, answer, as_json, quiet)
        if as_json:
            answer.json(result.to_dict())
        else:
            _print_result(result)


def _run_search(
    model: str, global_batch_size: int, options: dict[str, Any], command: ErrorReporter, as_json: bool, quiet: bool
) -> "TuningResult":
    from autotune.core.request import OPTIONS, tuning_request
    from autotune.space.user_arguments import read_user_arguments
    from autotune.study.limits import check_request

    # What is wrong is said within a second: the workflow alone takes as long to load.
    own = read_user_arguments(args=options.get("args"), training_args=options.get("training_args")).fields
    words = {name: value for name, value in options.items() if name in OPTIONS}
    check_request(tuning_request(model, global_batch_size, training_args=own, **words))

    from autotune.commands.finished import finished_answer

    # Before anything heavy is loaded: the same command on a finished study answers at once.
    if known := finished_answer(model, global_batch_size, {k: v for k, v in options.items() if k != "started"}):
        return known
    from rich.console import Console

    from autotune.commands import search as workflow
    from autotune.report.live.views import watcher

    # By name: what a logger prints goes to standard error, wherever the table is written.
    console = Console(file=sys.stderr if as_json else sys.stdout)
    seen: list[Any] = []
    try:
        with watcher(console, quiet) as watch:

            def both(progress: Any) -> None:
                seen[:] = [progress]
                watch(progress)

            return workflow.search(model, global_batch_size, watch=both, **options)
    except KeyboardInterrupt:
        trials = len(seen[0].trials) if seen else 0
        kept = f"{trials} trial(s) are kept." if trials else "What was measured before is kept."
        command.when_interrupted = resuming(kept, options["fresh"])
        _say_best_so_far(seen)
        raise


def _say_best_so_far(seen: list[Any]) -> None:
    best = seen[0].best if seen else None
    if best is not None:
        from autotune.report.summary import speed_text

        known = f"trial {best.number}{'' if best.confirmed else ', not confirmed'}"
        print(f"Best so far: {best.configuration}: {speed_text(best)} samples/s ({known})", file=sys.stderr)
    folder = seen[0].folder if seen else None
    if folder is not None and (folder / PAGE).exists():
        print(f"Report so far: {shown(folder)}/{PAGE}", file=sys.stderr)


def _print_result(result: "TuningResult") -> None:
    from autotune.report.script_lines import paste_lines
    from autotune.report.summary import answer_lines

    folder = shown(result.folder)
    print()
    print("\n".join(answer_lines(result)))
    print("\nPaste this:\n")
    print("\n".join(f"    {line}" for line in paste_lines(folder, result)))
    print(f"\nReport: {folder}/{PAGE} (in short: summary.md)")
