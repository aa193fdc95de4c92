"""`search`: from a request to its result."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from autotune.commands.finished import finished_study, request_fingerprint
from autotune.commands.result import TuningResult
from autotune.commands.save import begin
from autotune.core import Environment, TuningRequest, Workload
from autotune.core.interrupt import graceful_interrupt, stop_reason_of
from autotune.core.random_state import kept_random_state
from autotune.core.request import CONFIRMATION_ROUNDS, OPTIONS, tuning_request
from autotune.core.time_limit import TimeLimit
from autotune.probe.device import nvml as device
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_environment, read_workload
from autotune.probe.runner import LiveProbe
from autotune.report import FILES
from autotune.report.live.views import following
from autotune.report.loggers.guarded import LoggerGroup
from autotune.sampler.calibration import calibrated
from autotune.sampler.physics import WarmStart
from autotune.space.build import build_space
from autotune.space.dominance import crash_notes
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS
from autotune.space.setup import check_fields, what_differs
from autotune.space.tensor_cores import advice
from autotune.space.user_arguments import UserArguments, left_out, read_user_arguments
from autotune.study.finish import finish
from autotune.study.history import Remembered, recall, remember
from autotune.study.identity import study_identity
from autotune.study.limits import check_model_fits, check_request, least_bytes, memory_limit
from autotune.study.loop import import_trials, open_study, progress
from autotune.study.loop import search as run_study
from autotune.study.plan import Progress, Watch, plan_of
from autotune.study.store import check_identity, is_unmeasured, locked, read_peaks, read_prospects, remove_study
from autotune.study.warm_start import build_warm_start, count_operations, keeping_peaks, worth_of_padding
from autotune.workload.model.pickling import Payload, packed
from autotune.workload.model.rebuild import ITSELF, MODEL_INIT


@kept_random_state()
def search(
    model: str | os.PathLike[str] | Callable[..., Any] | Payload,
    global_batch_size: int,
    *,
    task: str | None = None,
    sequence_length: int | None = None,
    dataset: str | os.PathLike[str] | None = None,
    dataset_split: str = "train",
    text_column: str | None = None,
    label_column: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    space: str | os.PathLike[str] = "default",
    fix: Mapping[str, Any] | Iterable[str] | None = None,
    only: Mapping[str, Any] | Iterable[str] | None = None,
    device: str = "auto",
    memory_limit: str | int | None = None,
    headroom: str | float = 0.05,
    n_trials: int = 20,
    timeout: str | float | None = None,
    probe_timeout: str | float | None = None,
    confirmation_rounds: int = CONFIRMATION_ROUNDS,
    sampler: str = "physics",
    margin: str | float = 0.01,
    training_steps: int | None = None,
    no_history: bool = False,
    keep_numerics: bool = False,
    objective: str = "samples_per_second",
    seed: int = 0,
    args: UserArguments = None,
    require_parity: bool = False,
    allow_loss_difference: bool = False,
    trust_remote_code: bool = False,
    output_dir: str | os.PathLike[str] = "reports",
    report_to: str | Iterable[str] | None = None,
    study_name: str | None = None,
    fresh: bool = False,
    watch: Watch | bool | None = None,
    train_dataset: Any = None,
    data_collator: Any = None,
    processing_class: Any = None,
    trainer_class: type | None = None,
    probes: Callable[[bytes], ProbeHost] | None = None,
    started: float | None = None,
    base_arguments: UserArguments = None,
    training_args: UserArguments = None,
) -> TuningResult:
    """Find the fastest configuration that fits; every option of `autotune search` is an argument here.

    - `model`: a built-in name, folder, config JSON or hub id; or what makes a model (a function, a class or a partial of
      them, called without arguments), with `train_dataset`; or what `tune` sends.
    - `global_batch_size`: samples in one optimizer step, over all ranks: exact in every trial.
    - `task`: `causal-lm`, `masked-lm`, ...; by default from the model's config.
    - `sequence_length`: tokens in the longest sample.
    - `dataset`: a local file or folder, or a hub id; by default random tokens. `dataset_split`, `text_column`,
      `label_column`: of it. `tokenizer`: name or folder; by default the model's own, else one trained on the data.
    - `space`: a shipped search space or a YAML file. `fix`: setting -> the value that it keeps; `only`: setting -> the values
      that are searched; both also as `["precision=bf16"]`.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`.
    - `memory_limit`: that the training may use, as `"24GiB"` or in bytes; by default what is free. `headroom`: share of it
      that must stay free, as 0.05 or `"5%"`.
    - `n_trials`: probes in all, the baseline's among them, confirmations not. `timeout`: of the whole call, in
      seconds or as `"10m"`; what it is too short for is left out and named. `probe_timeout`: of one probe; by default 10
      times the baseline's, at least 60 s. `confirmation_rounds`: of the best trials and the baseline at the least.
    - `sampler`: `physics`, `tpe`, `gp`, `random`, `qmc` or `brute-force`; `seed`: of it. `margin`: share by which something
      untried must be able to beat the best for `physics` to go on. `training_steps`: of the run this is for; a search
      that cannot save its own time over them ends.
    - `no_history`: leave aside what past searches on this device measured. `keep_numerics`: nothing is tried that learns
      differently. What does not learn as fp32 does cannot win, unless `allow_loss_difference`; `require_parity`: losses
      are compared however long that takes.
    - `objective`: `samples_per_second`, `tokens_per_second`, or `memory`.
    - `args`: your own `TrainingArguments`, as the object, as fields, or a JSON or YAML file: base of every trial, and the
      baseline. `base_arguments` and `training_args` are its former names.
    - `trust_remote_code`: run code that comes with the model.
    - `output_dir`: where report folders go; `study_name`: of this one's. `fresh`: begin the study again. `report_to`:
      trackers that are told of the study (`tensorboard`, `wandb`, `mlflow`, `trackio`).
    - `watch`: called with a Progress for everything that happens; by default, or by True, it is shown: in place in a
      notebook or a terminal, else as a line an event on standard error; False: nothing is.
    - `train_dataset`, `data_collator`, `processing_class`, `trainer_class`: as the Trainer takes them, with a `model` that is
      made by you.
    - `probes`: makes what starts probes from the caller's pickled objects; by default a `ProbeHost`, with processes on this
      machine. `started`: reading of the monotonic clock from which the timeout counts, by default this call's.

    Raises InvalidRequest for what cannot be done as asked, NothingFits, TimeIsOver, StudyInUse, StorageFailed, SearchFailed;
    KeyboardInterrupt passes: at the first Ctrl-C once the running probe is done, at the second at once; from the first
    probe on the report of what is known was written before.
    """
    given = locals()
    own = read_user_arguments(args=args, base_arguments=base_arguments, training_args=training_args)
    objects = {name: given[name] for name in ("train_dataset", "data_collator", "processing_class", "trainer_class")}
    brought = packed(model, {name: value for name, value in objects.items() if value is not None})
    request = tuning_request(
        brought.name, global_batch_size, training_args=own.fields, **{option: given[option] for option in OPTIONS}
    )
    notes = (*([left_out(own.unsent)] if own.unsent else []), *brought.notes)
    limit = TimeLimit(request.timeout_s, time.monotonic() if started is None else started)
    card = check_request(request, own_data=bool(brought.pickled))
    fingerprint = "" if brought.pickled else request_fingerprint(request)
    result = finished_study(request, fingerprint) if fingerprint and not fresh else None
    pickled, warnings = brought.pickled, brought.warnings
    result = result or _begin(
        request, card, own.source, probes or ProbeHost, pickled, notes, warnings, fresh, watch, limit, fingerprint
    )
    user = own.user if brought.user_arguments is None else brought.user_arguments
    return dataclasses.replace(result, user_arguments=user)


IMPORTED_AHEAD = ("pandas", "sqlalchemy.dialects.sqlite", "alembic.command")
"""What a study's storage and report need, imported while the host imports its own libraries."""


def _begin(
    request: TuningRequest,
    card: device.Card | None,
    source: str,
    probes: Callable[[bytes], ProbeHost],
    pickled: bytes,
    notes: tuple[str, ...],
    warnings: tuple[str, ...],
    fresh: bool,
    watch: Watch | bool | None,
    time_limit: TimeLimit,
    fingerprint: str,
) -> TuningResult:
    """Read device, model and data, and search in the study's folder. source: of the user's own
    arguments, for people. pickled: the caller's own objects.
    fingerprint: of the request, empty where another one cannot be told from it."""
    base = request.training_args
    with probes(pickled) as host, following(watch) as show:
        host.time_limit = time_limit
        for name in IMPORTED_AHEAD:
            import_module(name)
        environment, card = read_environment(host, request, card)
        check_fields(base, environment, source)
        base = what_differs(base, environment)
        request = dataclasses.replace(request, training_args=base)
        workload = read_workload(host, request)
        space = build_space(request, environment, workload, base)
        unmeasured = _unmeasured(request, environment, workload, space, fresh)
        unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, *notes), study_warnings=warnings)
        assert unmeasured.folder is not None
        with locked(unmeasured.folder):
            if fresh or is_unmeasured(unmeasured.folder):
                remove_study(unmeasured.folder, FILES)
            result = _search(unmeasured, space, host, card, show, fresh, time_limit, fingerprint)
            result.best  # noqa: B018  (raises where there is none)
            return result


def _search(
    unmeasured: TuningResult,
    space: SearchSpace,
    host: ProbeHost,
    card: device.Card | None,
    watch: Watch,
    fresh: bool,
    time_limit: TimeLimit,
    fingerprint: str,
) -> TuningResult:
    """Run the study in its locked folder; the report is written however it ends. fingerprint: of the request, empty
    where another one cannot be told from it."""
    request, folder = unmeasured.request, unmeasured.folder
    assert folder is not None
    check_identity(folder, unmeasured.identity)
    begin(unmeasured, folder)
    plan = plan_of(request, time_limit, unmeasured.memory_limit_bytes, unmeasured.allowed_bytes)
    environment, workload, base = unmeasured.environment, unmeasured.workload, request.training_args
    past = Remembered() if request.no_history else recall(environment, unmeasured.identity)
    allowed = unmeasured.allowed_bytes
    knowledge = WarmStart(allowed)
    if request.sampler == "physics":
        watch(Progress("preparing", (), probes_left=request.n_trials, message="estimating memory before any probe"))
        knowledge = build_warm_start(host, environment, workload, space, base, allowed, past.others, time_limit)
        if knowledge.unknown:
            unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, knowledge.unknown))
    elif not environment.is_cpu:  # of a CPU no peak is known, and a count takes as long as some probes
        knowledge = dataclasses.replace(
            knowledge, arithmetic=count_operations(host, environment, workload, space, base, time_limit)
        )
    notes = (*unmeasured.notes, *worth_of_padding(host, environment, workload, space, knowledge.arithmetic, time_limit))
    unmeasured = dataclasses.replace(unmeasured, notes=notes, arithmetic=knowledge.arithmetic)
    study = open_study(folder, space, plan, knowledge)
    watch = keeping_peaks(watch, knowledge, folder)
    if adopted := 0 if fresh or workload.user_objects else import_trials(study, past.trials):
        note = f"{adopted} trial(s) come from an earlier search of the same request (--no-history measures anew)"
        unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, note))
    probe = LiveProbe(
        host,
        environment,
        workload,
        base,
        allowed,
        study.probe_folder,
        request.objective,
        device_used=device.usage_of(card),
    )
    loggers = LoggerGroup(request.report_to, request.objective, folder)
    result = unmeasured
    with graceful_interrupt(study.wish, lambda message: watch(progress(study, "stopping", message=message))):
        try:
            loggers.start(request, unmeasured)
            watch = loggers.watching(watch)
            result = dataclasses.replace(result, stop_reason=run_study(study, probe, watch))
            remember(environment, unmeasured.identity, study.trials, calibrated(space, knowledge, study.trials))
            result = dataclasses.replace(result, rehearsal=finish(study, probe.train, watch), complete=True)
        except BaseException as error:
            result = dataclasses.replace(result, stop_reason=stop_reason_of(error))
            raise
        finally:
            with study.wish.held_back():
                result = dataclasses.replace(
                    result,
                    trials=tuple(study.trials),
                    duplicate_proposals=study.duplicate_proposals,
                    left_out=tuple(study.left_out),
                    numerics=study.numerics and dataclasses.replace(study.numerics, weights=_weights_text(workload)),
                    notes=(*unmeasured.notes, *crash_notes(study.trials), *loggers.problems),
                    finished=fingerprint if result.complete and not study.left_out else "",
                    prospects=read_prospects(folder),
                    estimated_peaks=read_peaks(folder),
                )
                if result.complete and (warning := result.loss_warning):
                    result = dataclasses.replace(result, study_warnings=(*result.study_warnings, warning))
                result.save(folder)
            loggers.finish(result, result.complete)
    return result


OWN_WEIGHTS = {MODEL_INIT: "weights as model_init makes them", ITSELF: "the weights of the model as it was sent"}
"""What a caller's own model was made by -> its weights; of a model rebuilt from its config they are random."""


def _weights_text(workload: Workload) -> str:
    """Where the weights of the losses that are compared come from."""
    if workload.user_objects and workload.source in OWN_WEIGHTS:
        return OWN_WEIGHTS[workload.source]
    return "the model's own weights" if workload.weights else "random weights"


def _unmeasured(
    request: TuningRequest, environment: Environment, workload: Workload, space: SearchSpace, fresh: bool
) -> TuningResult:
    """Everything that is known of the answer before the first probe.

    Raises InvalidRequest for a limit above the device, NothingFits for one below what the model alone needs.
    """
    folder = request.study_folder(workload.task, environment.device)
    limit = memory_limit(request, environment, None if fresh or is_unmeasured(folder) else folder)
    allowed = int(limit * (1 - request.headroom))
    if not any(SETTINGS[name].spares_gradients(value) for name, values in space.values.items() for value in values):
        check_model_fits(workload, allowed, limit, least_bytes(space, environment))
    return TuningResult(
        request=request,
        workload=workload,
        environment=environment,
        trials=(),
        stop_reason="the search was interrupted",
        complete=False,
        memory_limit_bytes=limit,
        allowed_bytes=allowed,
        space_size=space.size,
        ruled_out=space.ruled_out,
        notes=(
            *space.notes,
            *_learning(space),
            *advice(workload.model_config, environment, space.possible_values("precision")),
        ),
        identity=study_identity(request, environment, workload, space),
        folder=folder,
    )


def _learning(space: SearchSpace) -> tuple[str, ...]:
    names = ", ".join(space.learns_differently)
    return (f"changes what is learned: {names} (--keep-numerics leaves that as it is)",) if names else ()


__all__ = ["Progress", "search"]
