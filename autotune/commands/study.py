"""The study of a search: run, and saved however it ends."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial

from autotune.commands.result import TuningResult
from autotune.commands.save import RESULT, weights_text
from autotune.commands.setup import SearchSetup
from autotune.core.interrupt import graceful_interrupt
from autotune.core.note import Note, NoteKind
from autotune.core.prospect import Forecast
from autotune.core.stop_reason import stop_reason_of
from autotune.core.units import format_seconds
from autotune.executors import Executor
from autotune.executors.local import joined, pool_of
from autotune.executors.pool import Pool
from autotune.judge.dominance import baseline_notes, crash_notes
from autotune.memory.estimate import MemoryModel
from autotune.probe.runner import LiveProbe
from autotune.report.live.notebook import in_notebook
from autotune.report.live.views import saying
from autotune.report.summary import answer_lines, python_lines
from autotune.report.trackers import Trackers, answer_of
from autotune.sampler.calibration import calibrated
from autotune.sampler.physics import PhysicsSampler
from autotune.study.database import StudyDatabase
from autotune.study.finish import finish
from autotune.study.fleet import Fleet
from autotune.study.history import remember
from autotune.study.loop import import_trials
from autotune.study.loop import search as run_study
from autotune.study.measure import callback_notes, left_out, live_probe
from autotune.study.plan import ProgressKind, Watch
from autotune.study.store import read_peaks, read_prospects, reporting_storage
from autotune.study.study import Study
from autotune.study.warm_start import keeping_peaks, trace_ahead, warm_up


def run(setup: SearchSetup) -> TuningResult:
    """Run the study; the report is written however it ends. Raises what `search` raises."""
    result, study, request = setup.unmeasured, setup.study, setup.unmeasured.request
    physics = study.sampler if isinstance(study.sampler, PhysicsSampler) else None
    database = StudyDatabase(study.folder, study.plan.objective, physics)
    trackers = Trackers(request.report_to, study.folder)
    study.publish = partial(_publish, study, database, trackers)
    notes, expected_s = [*result.notes, *setup.past.notes], list[float]()
    if adopted := import_trials(study, setup.past.trials):
        notes.append(Note(NoteKind.EARLIER_TRIALS, {"trials": adopted}))
    probe_on = partial(_probe, setup, left_out(study.trials))
    for note in result.notes:
        if note.kind is NoteKind.UNGUARDED:
            setup.watch(study.progress(ProgressKind.PREPARING, message=note.text))
    fleet, watch = Fleet(pool_of(setup.executors, probe_on)), keeping_peaks(setup.watch, study)
    stopping = partial(study.progress, ProgressKind.STOPPING)
    with ExitStack() as stack:
        stack.enter_context(graceful_interrupt(study.stop_request, lambda text: watch(stopping(message=text))))
        try:
            with reporting_storage(study.folder):
                (study.folder / RESULT).unlink(missing_ok=True)  # a search that is killed from here on leaves none
            study.publish()
            traces = trace_ahead(study, setup.executors[0].host, setup.context, stack)
            estimate = cache(partial(_estimate, setup, fleet.pool, traces, notes))
            prepare = partial(_prepare, setup, estimate, expected_s, bool(study.trials))
            result = replace(result, stop=run_study(study, fleet, watch, prepare))
            calibration = calibrated(study.opened_space, study.warm_start, study.trials)
            remember(result.environment, result.identity, study.trials, calibration)
            last = probe_on(_executor_of_answer(setup, fleet.pool))
            result = replace(result, sanity_check=finish(study, last.train, watch), complete=True)
        except BaseException as error:
            result = replace(result, stop=stop_reason_of(error))
            raise
        finally:
            with study.stop_request.held_back():
                notes += [*_notes_on_trials(study), *trackers.problems]
                forecast = Forecast(expected_s[0], _elapsed_s(study)) if expected_s else None
                result = _with_trials(replace(result, notes=tuple(notes), forecast=forecast), setup, fleet)
                result.save(study.folder)
                study.publish()
            trackers.close(database.study, answer_of(result))
    result.best  # noqa: B018  (raises if there is none)
    return result


def _publish(study: Study, database: StudyDatabase, trackers: Trackers) -> None:
    """Bring study.db and the trackers up to date."""
    database.update(study.opened_space, study.trials, study.ledger.unfinished)
    trackers.log(database.study)


def _probe(setup: SearchSetup, excluded: dict[str, str], executor: Executor) -> LiveProbe:
    """The probe of an executor. excluded: callbacks of the user's, as in `LiveProbe.left_out`."""
    on = executor.host, executor.environment, executor.workload, setup.study.plan.allowed_bytes, setup.study.folder
    return live_probe(setup.unmeasured.request, *on, device_used=executor.device_used, left_out=excluded)


def _able(setup: SearchSetup, pool: Pool) -> list[Executor]:
    """The executors that can be used; all if none can."""
    return [executor for executor in setup.executors if executor.name in pool.devices] or [*setup.executors]


def _executor_of_answer(setup: SearchSetup, pool: Pool) -> Executor:
    """The devices that a training with the best configuration takes, as one executor."""
    best = setup.study.standing.answer
    return joined(_able(setup, pool)[: pool.devices_needed(best.configuration) if best else 1])


def _prepare(setup: SearchSetup, estimate: Callable[[], None], expected_s: list[float], is_resumed: bool) -> None:
    """Estimate, and once a configuration fits say how long the search is expected to take.

    expected_s: gets the seconds of the whole command then, once; a search that is resumed says nothing.
    """
    study = setup.study
    estimate()
    to_go_s = study.progress(ProgressKind.PREPARING).seconds_to_go
    if is_resumed or expected_s or to_go_s is None or not any(trial.feasible for trial in study.trials):
        return
    expected_s.append(_elapsed_s(study) + to_go_s)
    message = f"the search is expected to take about {format_seconds(to_go_s)} from here"
    setup.watch(study.progress(ProgressKind.PREPARING, message=message))


def _estimate(setup: SearchSetup, pool: Pool, traces: Callable[[], MemoryModel] | None, notes: list[Note]) -> None:
    """Estimate what is untried. traces: of `trace_ahead`; notes: gets those on the estimates."""
    study, context = setup.study, setup.context
    what = "speed" if context.workload.user_objects else "memory and speed"  # a caller's own model is not traced
    message = f"estimating {what} of untried configurations"
    setup.watch(study.progress(ProgressKind.PREPARING, message=message))
    notes += warm_up(study, _able(setup, pool)[0].host, context, setup.past.others, traces)


def _elapsed_s(study: Study) -> float:
    """Seconds since the command began."""
    return time.monotonic() - study.plan.time.started


def _notes_on_trials(study: Study) -> list[Note]:
    """Notes on what the study measured."""
    of_study, trials = (*study.kept_notes(), *study.risk_notes()), study.trials
    return [*of_study, *baseline_notes(trials), *crash_notes(trials), *callback_notes(trials)]


def _with_trials(result: TuningResult, setup: SearchSetup, fleet: Fleet) -> TuningResult:
    """The result with what the study measured."""
    study, ledger, numerics = setup.study, setup.study.ledger, setup.study.ledger.numerics
    return replace(
        result,
        trials=tuple(study.trials),
        space_size=study.space.size,
        ruled_out=study.space.ruled_out,
        duplicate_proposals=study.sampler.duplicates,
        left_out=tuple(ledger.left_out),
        numerics=numerics and replace(numerics, weights=weights_text(result.workload)),
        finished=setup.fingerprint if result.complete and not ledger.left_out else "",
        prospects=read_prospects(study.folder),
        estimated_peaks=read_peaks(study.folder),
        arithmetic=study.warm_start.arithmetic,
        devices=fleet.described(ledger),
    )


def print_answer(result: TuningResult, watch: Watch | bool | None) -> None:
    """Print the answer for a caller in Python; a notebook shows the result itself."""
    if not callable(watch) and not in_notebook():
        print_line = saying(watch)
        for line in ("", *answer_lines(result), "", *python_lines(result)):
            print_line(line)
