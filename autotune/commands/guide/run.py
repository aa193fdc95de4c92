"""The guides' ladder walked on this machine: each rung a real probe, in the guides' order."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.commands.guide.files import LADDER_FILES, write_ladder
from autotune.commands.guide.ladder import GLOBAL_BATCH_SIZE, MICRO_STEPS, TASK, GuideMethod, Ladder, rungs_here
from autotune.commands.guide.live import guide_watcher
from autotune.core.errors import InvalidRequest, NothingFits
from autotune.core.measurement import Measurement, Outcome
from autotune.core.request import TuningRequest, tuning_request
from autotune.core.trial import Trial
from autotune.core.units import format_bytes
from autotune.core.workload import Workload
from autotune.probe import Probe
from autotune.probe.device import nvml as device
from autotune.probe.order import CONFIRMATION, CUDA_CONFIRMATION, Timing
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_environment, read_workload
from autotune.probe.runner import LiveProbe
from autotune.report.live.views import errors
from autotune.space.dominance import NEVER_PROBED
from autotune.study.limits import check_files, check_model_fits, memory_limit
from autotune.study.measure import keep, measure
from autotune.study.plan import Plan
from autotune.study.store import REQUEST, locked, probe_folder, remove_study, reporting_storage

OPTIONS = (
    *("task", "sequence_length", "dataset", "dataset_split", "text_column", "label_column", "tokenizer"),
    *("device", "memory_limit", "headroom", "probe_timeout", "trust_remote_code", "output_dir"),
)
"""What of a search's options means something here."""

TIMING = Timing(untimed_least=4, timed_least=10, timed_most=CONFIRMATION.timed_most, target=CONFIRMATION.target)
ON_CUDA = replace(
    TIMING,
    untimed_seconds=CUDA_CONFIRMATION.untimed_seconds,
    timed_seconds_least=CUDA_CONFIRMATION.timed_seconds_least,
)
"""One run a rung has to tell as much as a confirmation's rounds: as many steps, and more time for them."""

Watch = Callable[[Ladder, str], None]
"""Called with the ladder as far as it is known, and what is done now."""


def guide(
    model: str | os.PathLike[str],
    global_batch_size: int = GLOBAL_BATCH_SIZE,
    *,
    task: str | None = None,
    sequence_length: int | None = None,
    dataset: str | os.PathLike[str] | None = None,
    dataset_split: str = "train",
    text_column: str | None = None,
    label_column: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    device: str = "auto",
    memory_limit: str | int | None = None,
    headroom: str | float = 0.05,
    probe_timeout: str | float | None = None,
    trust_remote_code: bool = False,
    output_dir: str | os.PathLike[str] = "reports",
    watch: Watch | bool | None = None,
) -> Ladder:
    """Walk the guides' ladder with this model; every option of `autotune guide` is an argument here.

    global_batch_size: a multiple of 4, taken at once or in the guides' four micro-steps. The task is the guides' sequence
    classification where the model and the data can do it, the sequence length 512 or the most that the model takes.
    What is not told of here is as in `autotune.search`.
    watch: called for everything that happens; by default, or by True, it is shown on standard error; False: nothing is
    shown. Leaves probes/, guide.json, .csv, .md and .svg in
    `<output-dir>/guide-<model>-<device>`; what a run before left there goes.

    Raises InvalidRequest for what cannot be done as asked, NothingFits where the model alone does not fit, StudyInUse,
    StorageFailed, ProbeHostFailed; KeyboardInterrupt passes after what is known was written.
    """
    given = locals()
    request = _read_request(model, global_batch_size, {name: given[name] for name in OPTIONS})
    return _walk(request, watch)


def _walk(request: TuningRequest, watch: Watch | bool | None) -> Ladder:
    card = device.choose_device(request.device)
    check_files(request)
    with ProbeHost() as host, _following(watch) as told:
        environment, card = read_environment(host, request, card)
        workload, notes = _read_workload(host, request)
        limit = memory_limit(request, environment, None)
        allowed = int(limit * (1 - request.headroom))
        check_model_fits(workload, allowed, limit)
        folder = Path(request.output_dir) / f"guide-{request.model_name}-{environment.device.replace(':', '')}"
        rungs = tuple(rungs_here(environment, workload))
        size = request.global_batch_size
        ladder = Ladder(rungs, workload, environment, size, limit, allowed, notes=notes, folder=str(folder))
        with locked(folder):
            clear(folder)
            timing = TIMING if environment.is_cpu else ON_CUDA
            probe = LiveProbe(
                host,
                environment,
                workload,
                {},
                allowed,
                partial(probe_folder, folder),
                device_used=device.usage_of(card),
                timings=(timing, timing),
            )
            return climb(ladder, probe, folder, told, request.probe_timeout_s)


def _following(watch: Watch | bool | None) -> AbstractContextManager[Watch]:
    if callable(watch):
        return nullcontext(watch)
    return nullcontext(lambda ladder, doing: None) if watch is False else guide_watcher(errors())


def climb(
    ladder: Ladder, probe: Probe, folder: Path, watch: Watch | None = None, probe_timeout_s: float | None = None
) -> Ladder:
    """Measure rung by rung what can run here; the files are written however it ends. Raises StorageFailed."""
    say = watch or (lambda ladder, doing: None)
    try:
        for number, rung in enumerate(ladder.rungs):
            say(ladder, f"measuring {rung.name}")
            trial = _trial(ladder, probe, folder, rung, number, probe_timeout_s)
            ladder = replace(ladder, trials=(*ladder.trials, trial))
            say(ladder, "")
    finally:
        write_ladder(folder, ladder)
    return ladder


def check_climbed(ladder: Ladder) -> None:
    """Raise NothingFits where no rung at all ran to its end within its memory."""
    if not ladder.known:
        raise NothingFits(
            f"No rung of the ladder ran to its end in {format_bytes(ladder.allowed_bytes)}: see {ladder.folder}/guide.md.",
            "Raise --memory-limit, shorten --sequence-length, or choose a smaller model.",
        )


def _trial(
    ladder: Ladder, probe: Probe, folder: Path, rung: GuideMethod, number: int, probe_timeout_s: float | None
) -> Trial:
    """One rung, measured as a confirmation is: every micro-step runs, and no rung ends early because another is faster."""
    configuration = rung.configuration(ladder.global_batch_size)
    if rung.ruled_out:
        why = Measurement(Outcome.UNSUPPORTED, rung.ruled_out, where=NEVER_PROBED, asked=configuration.values)
        with reporting_storage(folder):
            keep(probe_folder(folder, number), configuration, why)
        return Trial(number, configuration, why)
    plan = Plan(
        n_trials=len(ladder.rungs),
        objective="samples_per_second",
        memory_limit_bytes=ladder.memory_limit_bytes,
        allowed_bytes=ladder.allowed_bytes,
        probe_timeout_s=probe_timeout_s,
    )
    probed = [trial for trial in ladder.trials if trial.measurement.where != NEVER_PROBED]
    return Trial(number, configuration, measure(folder, plan, probed, probe, configuration, number, confirmation=1))


# What the request says, read --------------------------------------------------------------------------------------


def _read_request(model: str | os.PathLike[str], global_batch_size: int, options: dict[str, Any]) -> TuningRequest:
    """Raises InvalidRequest, before anything is started, for wrong words."""
    request = tuning_request(os.fspath(model), global_batch_size, space="guide", **options)
    if request.global_batch_size % MICRO_STEPS:
        raise InvalidRequest(
            f"The guides take a batch in {MICRO_STEPS} micro-steps, which do not divide {request.global_batch_size}.",
            f"Use a multiple of {MICRO_STEPS}.",
        )
    return request


def _read_workload(host: ProbeHost, request: TuningRequest) -> tuple[Workload, tuple[str, ...]]:
    """The guides' task where nobody chose one and model and data can do it, else the model's own; and what to say of it."""
    notes: tuple[str, ...] = ()
    if request.task is None:
        try:
            workload = read_workload(host, replace(request, task=TASK))
        except InvalidRequest as error:
            workload = read_workload(host, request)
            notes = (f"task {workload.task} instead of the guides' {TASK}: {error.written[0]}",)
    else:
        workload = read_workload(host, request)
    return workload, (*notes, *workload.notes)


def clear(folder: Path) -> None:
    """Remove what a ladder before left; raises InvalidRequest where a study lies in the folder."""
    if (folder / REQUEST).exists():
        raise InvalidRequest(f"{folder} holds a study.", "Name another --output-dir.")
    remove_study(folder, LADDER_FILES)
