"""`autotune search`: command of `autotune.search`."""

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from autotune.cli import options as o
from autotune.cli.common import PAGE, WORDS, ErrorReporter, given_options, on_terminal, resuming
from autotune.core.errors import AutotuneError
from autotune.core.paths import shown
from autotune.core.units import counted

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult
    from autotune.study.plan import Progress

N_TRIALS = "Configurations to try at most, yours included."
TIMEOUT = "Time limit of the whole command, as 90s, 10m or 1h."
DEVICES = "Devices that measure side by side: GPUs, or shares of a CPU's cores."
CORES = "CPU cores of each of several devices."
EXECUTOR = "Whose devices: this machine's (local), or those of the Ray cluster at RAY_ADDRESS."
UNAUTHENTICATED = "Use a Ray cluster on which everyone who reaches it can run programs."
CONFIRMATION_ROUNDS = (
    "Measurements of the fastest and of your settings, side by side, that a speed-up needs at the least."
)
MARGIN = "Stop when no more than this share is left to gain (sampler physics)."
TRAINING_STEPS = "Steps of your real run: stop when more searching no longer pays off."
NO_HISTORY = "Do not use results of past searches on this device."
NO_RISK = "Do not try what may run out of memory once something fits."
KEEP_NUMERICS = "Do not change what the model learns (precision, optimizer, ...)."
REQUIRE_PARITY = "Accept only configurations whose losses are shown to match fp32's."
ALLOW_LOSS_DIFFERENCE = "Accept configurations whose losses differ from fp32's."


def search(
    context: typer.Context,
    model: o.Model,
    global_batch_size: o.GlobalBatchSize,
    task: o.Task = None,
    sequence_length: o.SequenceLength = None,
    dataset: o.Dataset = None,
    dataset_split: o.DatasetSplit = "train",
    text_column: o.TextColumn = None,
    label_column: o.LabelColumn = None,
    tokenizer: o.Tokenizer = None,
    space: o.SearchSpace = "default",
    fix: o.Fix = None,
    only: o.Only = None,
    device: o.Device = "auto",
    devices: Annotated[str, Option(help=DEVICES, metavar="N|all")] = "1",
    cores_per_device: Annotated[int | None, Option(help=CORES, show_default="an equal share")] = None,
    executor: Annotated[str, Option(help=EXECUTOR, metavar="local|ray")] = "local",
    allow_unauthenticated: Annotated[bool, Option("--allow-unauthenticated", help=UNAUTHENTICATED)] = False,
    memory_limit: o.MemoryLimit = None,
    headroom: o.Headroom = "5%",
    n_trials: Annotated[int, Option(help=N_TRIALS)] = 20,
    timeout: Annotated[o.Text, Option(help=TIMEOUT, metavar="DURATION")] = None,
    probe_timeout: o.ProbeTimeout = None,
    confirmation_rounds: Annotated[int, Option(help=CONFIRMATION_ROUNDS)] = 2,
    sampler: o.Sampler = "physics",
    margin: Annotated[str, Option(help=MARGIN, metavar="PERCENT")] = "1%",
    training_steps: Annotated[int | None, Option(help=TRAINING_STEPS, show_default="an hour of training")] = None,
    no_history: Annotated[bool, Option("--no-history", help=NO_HISTORY)] = False,
    no_risk: Annotated[bool, Option("--no-risk", help=NO_RISK)] = False,
    keep_numerics: Annotated[bool, Option("--keep-numerics", help=KEEP_NUMERICS)] = False,
    objective: o.Objective = "samples_per_second",
    seed: Annotated[int, Option(help="Seed of the sampler.")] = 0,
    args: o.Args = None,
    require_parity: Annotated[bool, Option("--require-parity", help=REQUIRE_PARITY)] = False,
    allow_loss_difference: Annotated[bool, Option("--allow-loss-difference", help=ALLOW_LOSS_DIFFERENCE)] = False,
    trust_remote_code: o.TrustRemoteCode = False,
    output_dir: o.OutputDir = "reports",
    report_to: o.ReportTo = None,
    study_name: Annotated[
        o.Text, Option(help="Name of the study.", metavar="NAME", show_default="MODEL-TASK-gbN-DEVICE")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Discard the existing study and start again.")] = False,
    server: o.Server = None,
    detach: Annotated[bool, Option("--detach", help="With --server: queue the search and end.")] = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Find the fastest settings for MODEL that fit this device."""
    arguments = locals()
    with ErrorReporter(as_json) as command:
        started, options = context.obj or time.monotonic(), given_options(arguments)
        on_server = {"server": options.pop("server", None), "detach": options.pop("detach")}
        if server or detach:
            from autotune.cli.remote import search_on

            result = search_on(**on_server, options=options, command=command, as_json=as_json, quiet=quiet)
        else:
            result = _run_search(options | {"started": started}, command, as_json, quiet)
        if result is None:
            return
        if as_json:
            command.json(result.to_dict())
        else:
            from autotune.report.summary import answer_lines, use_lines

            result = replace(result, command=context.meta.get(WORDS, ()))
            seconds = time.monotonic() - started
            print("\n".join(["", *answer_lines(result), "", *use_lines(result, shown(result.folder), seconds)]))


def _run_search(options: dict[str, Any], command: ErrorReporter, as_json: bool, quiet: bool) -> "TuningResult":
    from autotune.core.request import OPTIONS, tuning_request
    from autotune.space.user_arguments import read_user_arguments
    from autotune.study.limits import check_request

    # Wrong options are refused within a second: the search's own imports take as long.
    arguments = {name: options[name] for name in ("model", "global_batch_size", *OPTIONS) if name in options}
    request = tuning_request(**arguments, training_args=read_user_arguments(args=options.get("args")).fields)
    check_request(request)

    from autotune.commands.finished import finished_study, request_fingerprint

    # The same command on a finished study prints its result before anything heavy is loaded.
    if not options["fresh"] and (result := finished_study(request, request_fingerprint(request))):
        return result
    from rich.console import Console

    from autotune.commands import search as workflow
    from autotune.report.live.views import watcher

    # By name: what a logger prints goes to standard error, wherever the table is written.
    console = Console(file=sys.stderr if as_json else sys.stdout)
    latest: list[Progress] = []
    try:
        with watcher(console, quiet, stays=False) as watch:

            def both(progress: "Progress") -> None:
                latest[:] = [progress]
                watch(progress)

            return workflow.search(**options, watch=both)
    except (KeyboardInterrupt, AutotuneError):
        known = f"{counted(len(latest[0].trials), 'trial')} kept." if latest and latest[0].trials else ""
        command.when_interrupted = resuming(known or "What was measured before is kept.", options["fresh"])
        if latest:
            _print_best_so_far(latest[0])
        raise


def _print_best_so_far(progress: "Progress") -> None:
    from autotune.report.live.text import lead_words, short

    title, numbers = lead_words(progress)
    if title:
        lead = progress.best or progress.fastest
        what = f"{short(lead.configuration, progress.trials[0])}, {numbers}" if lead and numbers else ""
        line = f"{title.capitalize()}{f': {what}' if what else '.'}"
        print(on_terminal(line, sys.stderr), file=sys.stderr)
    if progress.folder is not None and (progress.folder / PAGE).exists():
        print(f"Report so far: {shown(progress.folder)}/{PAGE}", file=sys.stderr)
