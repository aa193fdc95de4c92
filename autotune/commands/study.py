"""The study of a search: opened in its folder, run, and saved however it ends."""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from functools import cache
from importlib import import_module

from autotune.commands.result import TuningResult
from autotune.commands.save import RESULT, begin, weights_text
from autotune.core import Environment, TuningRequest, Workload
from autotune.core.configuration import RANKS
from autotune.core.interrupt import graceful_interrupt
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import Forecast
from autotune.core.stop_reason import KILLED, stop_reason_of
from autotune.core.units import format_seconds
from autotune.core.warning import ResultWarning, WarningKind
from autotune.executors import Executor
from autotune.executors.local import can_be_joined, cores_of, joined, local_executors, lock_card, pool_of
from autotune.executors.pool import Pool
from autotune.probe import Host
from autotune.probe.device import nvml as device
from autotune.probe.process.launcher import on_cores
from autotune.probe.queries import read_environment, read_workload
from autotune.probe.runner import LiveProbe
from autotune.report import FILES
from autotune.report.live.notebook import in_notebook
from autotune.report.live.views import following, saying
from autotune.report.summary import answer_lines, python_lines
from autotune.report.trackers import Trackers, answer_of
from autotune.sampler.calibration import calibrated
from autotune.sampler.physics import PhysicsSampler
from autotune.space.build import build_space
from autotune.space.dominance import baseline_notes, crash_notes
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS
from autotune.space.setup import check_fields, what_differs
from autotune.space.tensor_cores import advice
from autotune.study.database import StudyDatabase
from autotune.study.finish import finish
from autotune.study.fleet import Fleet
from autotune.study.history import Remembered, recall, remember
from autotune.study.identity import study_identity
from autotune.study.limits import check_model_fits, least_bytes, memory_limit, most_shards
from autotune.study.loop import import_trials, open_study
from autotune.study.loop import search as run_study
from autotune.study.measure import callback_notes, left_out, live_probe
from autotune.study.objective import best_trial
from autotune.study.plan import ProgressKind, Watch, plan_of
from autotune.study.store import (
    check_identity,
    is_unmeasured,
    locked,
    read_peaks,
    read_prospects,
    remove_study,
    reporting_storage,
)
from autotune.study.warm_start import keeping_peaks, trace_ahead, warm_up


def run(
    request: TuningRequest,
    host: Host,
    card: device.Card | None,
    source: str,
    notes: tuple[Note, ...],
    warnings: tuple[ResultWarning, ...],
    fresh: bool,
    watch: Watch | bool | None,
    fingerprint: str,
    executors: Sequence[Executor] = (),
    trains_on: bool = False,
) -> TuningResult:
    """Read device, model and data, and search in the study's folder.

    source: of the user's own arguments, for people. notes, warnings: on what was sent to the host. fingerprint: of the
    request, empty if another one cannot be told from it. executors: on other machines, the host is the first one's.
    trains_on: see `Payload`. Raises what `search` raises.
    """
    base = request.training_args
    for name in ("pandas", "sqlalchemy.orm", "alembic.command"):  # for report and study, while the host imports its own
        import_module(name)
    with following(watch) as show, ExitStack() as stack:
        if executors:
            environment = executors[0].environment
        else:
            with on_cores(cores_of(host)):
                environment, card = read_environment(host, request, card)
        if environment.unused_gpu:
            warnings = (*warnings, ResultWarning(WarningKind.UNUSED_GPU, detail=environment.unused_gpu))
        check_fields(base, environment, source)
        request = dataclasses.replace(request, training_args=what_differs(base, environment))
        workload = executors[0].workload if executors else read_workload(host, request)
        executors = executors or local_executors(host, request, card, workload, stack)
        space_environment = environment
        if len(executors) > 1:
            free = min(executor.environment.free_memory_bytes for executor in executors)  # on any of the devices
            environment = dataclasses.replace(environment, free_memory_bytes=free)
            # Ranks take devices of their own, on this machine.
            count = len(executors) if can_be_joined(executors) else 1
            space_environment = dataclasses.replace(environment, device_count=count)
        space = build_space(request, space_environment, workload, request.training_args)
        if not executors:  # cards of further ranks
            ranks = max(map(int, space.possible_values(RANKS)), default=1)
            for other in device.visible_cards() if card else ():
                if other.uuid in environment.device_uuids[1:ranks]:
                    notes = (*notes, *lock_card(other, stack))
        unmeasured = _unmeasured(request, environment, workload, space, fresh)
        unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, *notes), study_warnings=warnings)
        assert unmeasured.folder is not None
        with locked(unmeasured.folder):
            if fresh or is_unmeasured(unmeasured.folder):
                remove_study(unmeasured.folder, FILES)
            result = _run(unmeasured, space, host, card, show, fresh, fingerprint, executors, trains_on)
            result.best  # noqa: B018  (raises if there is none)
    if not callable(watch) and not in_notebook():  # there the result shows itself
        print_line = saying(watch)
        for line in ("", *answer_lines(result), "", *python_lines(result)):
            print_line(line)
    return result


def _run(
    unmeasured: TuningResult,
    space: SearchSpace,
    host: Host,
    card: device.Card | None,
    watch: Watch,
    fresh: bool,
    fingerprint: str,
    executors: Sequence[Executor] = (),
    trains_on: bool = False,
) -> TuningResult:
    """Run the study in its locked folder; the report is written however it ends."""
    request, folder = unmeasured.request, unmeasured.folder
    assert folder is not None
    check_identity(folder, unmeasured.identity)
    begin(unmeasured, folder)
    plan = plan_of(request, unmeasured.environment, host.time_limit, unmeasured.allowed_bytes)
    plan = dataclasses.replace(plan, keep_numerics=plan.keep_numerics or trains_on)
    environment, workload, base = unmeasured.environment, unmeasured.workload, request.training_args
    past = Remembered() if request.no_history else recall(environment, unmeasured.identity)
    study = open_study(folder, space, plan)
    physics = study.sampler if isinstance(study.sampler, PhysicsSampler) else None
    database = StudyDatabase(folder, plan.objective, physics)
    trackers = Trackers(request.report_to, folder)

    def publish() -> None:
        database.update(study.opened_space, study.trials, study.ledger.unfinished)
        trackers.log(database.study)

    study.publish = publish
    notes = [*unmeasured.notes, *past.notes]
    if adopted := 0 if fresh or workload.user_objects else import_trials(study, past.trials):
        notes.append(Note(NoteKind.EARLIER_TRIALS, {"trials": adopted}))

    expected_s: list[float] = []
    is_resumed = bool(study.trials)

    @cache
    def estimate() -> None:
        what = "speed" if workload.user_objects else "memory and speed"  # a caller's own model is not traced
        watch(study.progress(ProgressKind.PREPARING, message=f"estimating {what} of untried configurations"))
        hosts = [executor.host for executor in executors if executor.name in pool.devices]
        notes.extend(warm_up(study, [*hosts, host][0], environment, workload, base, past.others, traces))

    def prepare() -> None:
        """Estimate, and once a configuration fits say how long the search is expected to take."""
        estimate()
        to_go_s = study.progress(ProgressKind.PREPARING).seconds_to_go
        if is_resumed or expected_s or to_go_s is None or not any(trial.feasible for trial in study.trials):
            return
        expected_s.append(_elapsed_s(host) + to_go_s)
        message = f"the search is expected to take about {format_seconds(to_go_s)} from here"
        watch(study.progress(ProgressKind.PREPARING, message=message))

    def probe_on(executor: Executor) -> LiveProbe:
        on = executor.host, executor.environment, executor.workload
        return live_probe(request, *on, plan.allowed_bytes, folder, executor.device_used, left_out=failed)

    usage, failed = device.usage_of(card), left_out(study.trials)
    here = live_probe(request, host, environment, workload, plan.allowed_bytes, folder, usage, left_out=failed)
    for note in unmeasured.notes:
        if note.kind is NoteKind.UNGUARDED:
            watch(study.progress(ProgressKind.PREPARING, message=note.text))
    pool = pool_of(executors, probe_on) if executors else Pool({"": here})
    fleet = Fleet(pool)
    result = unmeasured
    watch = keeping_peaks(watch, study)
    with (
        graceful_interrupt(
            study.stop_request, lambda message: watch(study.progress(ProgressKind.STOPPING, message=message))
        ),
        ExitStack() as stack,
    ):
        try:
            with reporting_storage(folder):
                (folder / RESULT).unlink(missing_ok=True)  # a search that is killed from here on leaves none
            study.publish()
            traces = trace_ahead(study, host, environment, workload, base, stack)
            result = dataclasses.replace(result, stop=run_study(study, fleet, watch, prepare))
            remember(environment, unmeasured.identity, study.trials, calibrated(space, study.warm_start, study.trials))
            best = best_trial(study.trials, plan.objective)
            able = [executor for executor in executors if executor.name in pool.devices]
            last = probe_on(joined(able[: pool.devices_needed(best.configuration)])) if best and able else here
            result = dataclasses.replace(result, sanity_check=finish(study, last.train, watch), complete=True)
        except BaseException as error:
            result = dataclasses.replace(result, stop=stop_reason_of(error))
            raise
        finally:
            with study.stop_request.held_back():
                numerics, trials = study.ledger.numerics, study.trials
                of_trials = (
                    *study.kept_notes(),
                    *study.risk_notes(),
                    *baseline_notes(trials),
                    *crash_notes(trials),
                    *callback_notes(trials),
                )
                result = dataclasses.replace(
                    result,
                    trials=tuple(trials),
                    space_size=study.space.size,
                    ruled_out=study.space.ruled_out,
                    duplicate_proposals=study.sampler.duplicates,
                    left_out=tuple(study.ledger.left_out),
                    numerics=numerics and dataclasses.replace(numerics, weights=weights_text(workload)),
                    notes=(*notes, *of_trials, *trackers.problems),
                    finished=fingerprint if result.complete and not study.ledger.left_out else "",
                    prospects=read_prospects(folder),
                    estimated_peaks=read_peaks(folder),
                    arithmetic=study.warm_start.arithmetic,
                    devices=fleet.described(study.ledger),
                    forecast=Forecast(expected_s[0], _elapsed_s(host)) if expected_s else None,
                )
                result.save(folder)
                study.publish()
            trackers.close(database.study, answer_of(result))
    return result


def _elapsed_s(host: Host) -> float:
    """Seconds since the command began."""
    return time.monotonic() - host.time_limit.started


def _unmeasured(
    request: TuningRequest, environment: Environment, workload: Workload, space: SearchSpace, fresh: bool
) -> TuningResult:
    """Result with what is known before the first probe.

    Raises InvalidRequest for a limit above the device, NothingFits for one below what the model alone needs.
    """
    folder = request.study_folder(workload.task, environment.device)
    limit = memory_limit(request, environment, None if fresh or is_unmeasured(folder) else folder)
    allowed = int(limit * (1 - request.headroom))
    if not any(
        SETTINGS[name].costs.spares_gradients(value) for name, values in space.values.items() for value in values
    ):
        check_model_fits(workload, allowed, limit, least_bytes(space, environment), most_shards(space))
    return TuningResult(
        request=request,
        workload=workload,
        environment=environment,
        trials=(),
        stop=KILLED,
        complete=False,
        date=date.today().isoformat(),
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


def _learning(space: SearchSpace) -> list[Note]:
    names = ", ".join(space.learns_differently)
    return [Note(NoteKind.LEARNING, detail=names)] if names else []
