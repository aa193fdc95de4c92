"""Guide: the methods of a published ladder measured on this machine, each by a probe, in its order."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from autotune.commands.guide.ladder import GLOBAL_BATCH_SIZE, LADDERS, Ladder, methods_for
from autotune.commands.guide.table import ladder_figure, ladder_page, latest_line
from autotune.commands.rounds import measure_rounds, study_of
from autotune.core import InvalidRequest, TuningRequest, Workload, write_json
from autotune.core.errors import NothingFits
from autotune.core.note import Note, NoteKind
from autotune.core.request import GuideOptions, accepts, tuning_request
from autotune.core.slot import Slot
from autotune.core.units import format_bytes
from autotune.probe import Host, Probe
from autotune.probe.device import nvml
from autotune.probe.order import CUDA_CONFIRMATION, Timing
from autotune.probe.process.launcher import HostSet
from autotune.probe.queries import read_environment, read_workload
from autotune.report.files import storage_errors, write_file
from autotune.report.live.views import saying
from autotune.study.job import Known, Run
from autotune.study.limits import check_files, check_model_fits
from autotune.study.limits import memory_limit as limit_of
from autotune.study.measure import live_probe, unsupported
from autotune.study.plan import Plan, Progress, ProgressKind
from autotune.study.schedule import Turn
from autotune.study.store import REQUEST, locked, remove_study

FILES = ("guide.json", "guide.md", "guide.svg")

YEAR, SPACES = "2022", {"2022": "guide"}
"""The ladder by default, and the search spaces that hold a ladder's values; by default all settings."""

TIMING = Timing(untimed_least=4, timed_least=10, timed_most=20, target=0.01)
ON_CUDA = replace(
    TIMING,
    window_s=CUDA_CONFIRMATION.window_s,
    untimed_seconds_most=CUDA_CONFIRMATION.untimed_seconds_most,
    timed_seconds_least=CUDA_CONFIRMATION.timed_seconds_least,
)
"""The single run of a method takes as many steps as what is measured again, and more time for them."""


@accepts(GuideOptions)
def guide(
    model: str | os.PathLike[str],
    global_batch_size: int = GLOBAL_BATCH_SIZE,
    *,
    watch: Callable[[str], None] | bool | None = None,
    **options: Unpack[GuideOptions],
) -> Ladder:
    """Measure a ladder's methods with this model; the options of `autotune guide`.

    Writes probes/, guide.json, guide.md and guide.svg to
    `<output-dir>/guide-<model>-<device>` (of another ladder guide-<year>-…), in place of an earlier run's.

    Args:
        model: As in `autotune.search`.
        global_batch_size: A multiple of 4 for the guides of 2022, taken at once or in their four micro-steps.
        watch: Called with a line for each method. By default, or by True, they are shown on standard error; by False, they are
            not.
        **options: Each as a keyword. By default the task is the ladder's if model and data can do it.
        {options}

    Raises:
        InvalidRequest: Options are wrong.
        NothingFits: The model alone does not fit.
        StudyInUse: Another process holds the folder.
        StorageFailed: The folder cannot be written.
        ProbeHostFailed: The process that starts probes failed.
        KeyboardInterrupt: After the measured part was written.
    """
    year = options.pop("ladder", None) or YEAR
    if year not in LADDERS:
        raise InvalidRequest(f"There is no ladder {year!r}.", f"Pass one of {', '.join(LADDERS)}.", "ladder")
    published = LADDERS[year]
    request = tuning_request(model, global_batch_size, space=SPACES.get(year, "full"), **options)
    if request.global_batch_size % published.micro_steps:
        raise InvalidRequest(
            f"The guides take a batch in {published.micro_steps} micro-steps, which do not divide"
            f" {request.global_batch_size}.",
            f"Use a multiple of {published.micro_steps}.",
        )
    card = nvml.choose_device(request.device)
    check_files(request)
    with HostSet() as host:
        environment, card = read_environment(host, request, card)
        workload, notes = _read_workload(host, request, published.task)
        limit = limit_of(request, environment, None)
        allowed = int(limit * (1 - request.headroom))
        check_model_fits(workload, allowed, limit)
        kind = "guide" if year == YEAR else f"guide-{year}"
        folder = Path(request.output_dir) / f"{kind}-{request.model_name}-{environment.device.replace(':', '')}"
        methods, size = tuple(methods_for(published, environment, workload)), request.global_batch_size
        ladder = Ladder(
            published, methods, workload, environment, size, limit, allowed, notes=notes, folder=str(folder)
        )
        with locked(folder):
            clear(folder)
            timing = TIMING if environment.is_cpu else ON_CUDA
            more = {"device_used": nvml.usage_of(card), "timings": (timing, timing)}
            probe = live_probe(request, host, environment, workload, allowed, folder, **more)
            return run_guide(ladder, probe, folder, saying(watch), request.probe_timeout_s)


def run_guide(
    ladder: Ladder,
    probe: Probe,
    folder: Path,
    watch: Callable[[str], None] = lambda line: None,
    probe_timeout_s: float | None = None,
) -> Ladder:
    """Measure all methods that can run here, in order; the files are written however it ends. Raises StorageFailed."""
    size = ladder.global_batch_size
    plan = Plan(len(ladder.methods), ladder.guide.objective, ladder.allowed_bytes, probe_timeout_s=probe_timeout_s)
    study = study_of(ladder.methods[0].configuration(size), folder, plan)

    def next_method(turn: Turn) -> Run | Known | None:
        """The next method, which is known if it cannot run here."""
        number = len(turn.study.trials)
        if number == len(ladder.methods):
            return None
        slot, method = Slot(number), ladder.methods[number]
        configuration, reason = method.configuration(size), method.ruled_out
        known = unsupported(configuration, reason)
        return Known(slot, configuration, measurement=known) if reason else Run(slot, configuration)

    def show(progress: Progress) -> None:
        if progress.kind is ProgressKind.TRIAL:
            watch(latest_line(replace(ladder, trials=progress.trials)))

    try:
        measure_rounds(study, probe, [next_method], show)
    finally:
        ladder = replace(ladder, trials=tuple(study.trials))
        _write(folder, ladder)
    return ladder


def _write(folder: Path, ladder: Ladder) -> None:
    """Write FILES; raises StorageFailed."""
    data, page, picture = (folder / name for name in FILES)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(data, ladder.to_dict())
        write_file(page, ladder_page(ladder))
        if figure := ladder_figure(ladder):
            write_file(picture, figure)


def check_any_fits(ladder: Ladder) -> None:
    """Raise NothingFits if no method completed within its memory."""
    if not ladder.feasible:
        raise NothingFits(
            f"No method completed within {format_bytes(ladder.allowed_bytes)}: see {ladder.folder}/guide.md.",
            "Raise --memory-limit, shorten --sequence-length, or choose a smaller model.",
        )


def _read_workload(host: Host, request: TuningRequest, task: str) -> tuple[Workload, tuple[Note, ...]]:
    """The ladder's task if none is requested and model and data can do it, else the model's own; and notes on that."""
    notes: tuple[Note, ...] = ()
    if request.task is None:
        try:
            workload = read_workload(host, replace(request, task=task))
        except InvalidRequest as error:
            workload = read_workload(host, request)
            notes = (Note(NoteKind.OTHER_TASK, detail=f"{workload.task} ({error.message})"),)
    else:
        workload = read_workload(host, request)
    return workload, (*notes, *workload.notes)


def clear(folder: Path) -> None:
    """Remove the files of an earlier run; raises InvalidRequest if the folder holds a study."""
    if (folder / REQUEST).exists():
        raise InvalidRequest(f"{folder} holds a study.", "Name another --output-dir.")
    remove_study(folder, FILES)
