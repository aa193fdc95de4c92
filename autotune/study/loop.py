"""The loop: jobs begin as the schedule says, and what they measure is recorded; every trial on disk before the next starts.

while not Done:  step = next_job(study, fleet)
    Begin, Run, Known    a trial is begun, devices measure, or a measurement is recorded
    Wait                 what ends next is recorded
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.core import Measurement, Outcome, Trial
from autotune.core.errors import TimeIsOver
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import StopReason
from autotune.core.units import counted
from autotune.executors.pool import Ended, Pool, Work, as_pool
from autotune.judge.dominance import TOO_FEW_DEVICES
from autotune.probe import Probe
from autotune.probe.order import ANSWER
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.study.crashes import stop_if_it_crashes
from autotune.study.fleet import Fleet
from autotune.study.job import Begin, Done, Known, Run
from autotune.study.ledger import Ledger
from autotune.study.measure import measure
from autotune.study.plan import Plan, ProgressKind, Watch
from autotune.study.schedule import RULES, Rule, next_job
from autotune.study.stopping import time_is_over
from autotune.study.store import probe_folder, reporting_storage
from autotune.study.study import Study

# Opening -------------------------------------------------------------------------------------------------------


def open_study(folder: Path, space: SearchSpace, plan: Plan, warm_start: WarmStart | None = None) -> Study:
    """Open or begin the study in a locked folder. Raises StorageFailed.

    warm_start: of the sampler `physics`; by default nothing but the limit.
    """
    with reporting_storage(folder):
        study = Study(plan, space, Ledger.read(folder, plan))
    if warm_start is not None:
        study.start_from(warm_start)
    return study


def import_trials(study: Study, trials: Sequence[Trial]) -> int:
    """Import the trials of an earlier study of the same request, if this one has none; returns how many.

    Raises StorageFailed if the disk refuses.
    """
    allowed = study.plan.allowed_bytes
    reusable = [trial for trial in trials if _still_holds(trial, allowed)]
    if any(trial.feasible and not _under(allowed, trial).feasible for trial in reusable):
        # What ended early was slower than something that may not fit any more.
        reusable = [trial for trial in reusable if not trial.measurement.ended_early]
    ledger = study.ledger
    if (
        ledger.trials
        or ledger.unfinished
        or not reusable
        or reusable[0] != trials[0]
        or reusable[0].configuration != study.space.baseline
    ):
        return 0
    for number, trial in enumerate(reusable):
        trial = _under(allowed, trial).with_training_steps(study.plan.training_steps)
        ledger.record(Slot(number), trial.configuration, trial.measurement)
        for round_number, measurement in zip(trial.rounds, trial.confirmations, strict=True):
            ledger.record(Slot(number, round_number), trial.configuration, measurement)
    study.imported = len(reusable)
    study.keep_settings()
    return study.imported


def _still_holds(trial: Trial, allowed_bytes: int) -> bool:
    """True if a trial would end under this limit, its rounds too, as it did under the limit of its measurements."""
    return all(_holds(measurement, allowed_bytes) for measurement in trial.measurements)


def _holds(measurement: Measurement, allowed_bytes: int) -> bool:
    # Of devices there may be enough now.
    if measurement.observed_warnings or measurement.where == TOO_FEW_DEVICES:
        return False
    if measurement.outcome is Outcome.OUT_OF_MEMORY:
        return (measurement.allowed_bytes or 0) >= allowed_bytes
    return measurement.outcome not in (Outcome.CRASHED, Outcome.TIMED_OUT)


def _under(allowed_bytes: int, trial: Trial) -> Trial:
    """The trial with what it measured held against this limit."""
    measurement, *rounds = (
        replace(measurement, allowed_bytes=allowed_bytes) for measurement in (trial.measurement, *trial.confirmations)
    )
    return replace(trial, measurement=measurement, confirmations=tuple(rounds))


# The loop ------------------------------------------------------------------------------------------------------


def search(
    study: Study,
    probe: Probe | Pool | Fleet,
    watch: Watch = lambda progress: None,
    warm_up: Callable[[], None] = lambda: None,
    rules: Sequence[Rule] = RULES,
    check: Callable[[Study], None] = stop_if_it_crashes,
) -> StopReason:
    """Measure until the budget is used or nothing is worth its seconds; returns why it ended.

    probe: of one device, or the devices. warm_up: called before every step but the first, the baseline, which needs no warm
    start. rules: they choose each step, and the last one always has one. check: called before each step; raises if what was
    measured ends the search.

    Raises SearchFailed if the baseline crashes, one crash comes again and again whatever the values or no device is left,
    StorageFailed if the disk refuses, TimeIsOver if the baseline was not measured in time, KeyboardInterrupt when the
    user interrupts: everything so far is kept.
    """
    fleet = probe if isinstance(probe, Fleet) else Fleet(as_pool(probe))
    ledger, pool = study.ledger, fleet.pool
    if ledger.trials or ledger.unfinished:
        watch(study.progress(ProgressKind.RESUMED, message="; ".join(_resuming(study))))
    with fleet.abandoning():
        while True:
            check(study)
            if not pool.is_running:
                study.stop_request.check()
                fleet.check_devices(
                    study.plan.time.seconds_left(),
                    lambda message: watch(study.progress(ProgressKind.PREPARING, message=message)),
                    study.stop_request.check,
                )
            if ledger.trials:
                warm_up()
            step = next_job(study, fleet, rules)
            if isinstance(step, Done):
                break
            if isinstance(step, Begin):
                _start(study, fleet, step, watch)
            else:
                _record(study, fleet, *fleet.wait(), watch)
    with reporting_storage(study.folder):
        ledger.keep_gap(step.gap)
    ledger.leave_out(*step.left_out)
    watch(study.progress(ProgressKind.DONE, message=step.reason.text))
    return step.reason


def _resuming(study: Study) -> Iterator[str]:
    """The trials that a search resumes with, and the files that are measured or made again."""
    ledger = study.ledger
    source = " that the cache has of an earlier search (--no-history measures anew)" if study.imported else ""
    yield f"resuming with {counted(ledger.measured, 'trial')}{source}"
    for path, why in ledger.damage.items():
        yield f"{path.relative_to(study.folder)} cannot be read ({why})"
    for number in ledger.damaged_trials:
        yield f"{f'trial {number} is' if number else 'your own settings are'} measured again"


def _start(study: Study, fleet: Fleet, step: Begin, watch: Watch) -> None:
    """Begin a trial, let devices measure, or take what is known."""
    slot = step.slot
    study.ledger.begin(step)
    study.publish()
    is_news = isinstance(step, Run) or (isinstance(step, Known) and not slot.round)
    if is_news and slot.kind is not SlotKind.DEVICE:
        kind = ProgressKind.CONFIRMING if slot.round else ProgressKind.PROBING
        number = None if slot.kind is SlotKind.REFERENCE else slot.number
        configuration = None if number is None else step.configuration
        message = step.message if isinstance(step, Run) else ""
        watch(study.progress(kind, number=number, configuration=configuration, message=message))
    if isinstance(step, Known):
        _take(study, fleet, step, step.measurement, None, watch)
    elif isinstance(step, Run):
        if slot.kind is SlotKind.REFERENCE:  # an earlier one may be of another precision
            (probe_folder(study.folder, slot) / ANSWER).unlink(missing_ok=True)
        fleet.start(step, _work(study, step))


def _work(study: Study, job: Run) -> Work:
    """A function for the device that carries out a job: (seconds that it took, measurement)."""
    standing = study.standing

    def work(probe: Probe) -> tuple[float, Measurement]:
        started = time.monotonic()
        measurement = measure(study.folder, study.plan, standing, probe, job, study.stop_request)
        return time.monotonic() - started, measurement

    return work


def _record(study: Study, fleet: Fleet, job: Run, ended: Ended, watch: Watch) -> None:
    """Record what came of a job; one that lost its device, or failed there alone, is measured again."""
    ledger, slot = study.ledger, job.slot
    if isinstance(ended.error, TimeIsOver):
        ledger.give_up(slot, time_is_over(study.plan))
        if not ledger.trials and not ledger.unfinished and not fleet.pool.is_running:
            raise ended.error
        return
    if slot.kind is SlotKind.DEVICE:
        if ended.error is None:
            _take(study, fleet, job, ended.value[1], None, watch)
        return
    seconds, measurement = ended.value or (None, None)
    accepted = fleet.accept(job, ended.device, measurement)
    if accepted is None and measurement is not None:
        with reporting_storage(study.folder):
            (probe_folder(study.folder, slot) / ANSWER).unlink(missing_ok=True)
    if accepted is not None:
        _take(study, fleet, job, accepted, seconds, watch)


def _take(
    study: Study, fleet: Fleet, job: Begin, measurement: Measurement, seconds: float | None, watch: Watch
) -> None:
    """Record a measurement, and see what it changes."""
    ledger, slot = study.ledger, job.slot
    ledger.record(slot, job.configuration, measurement, seconds)
    study.publish()
    fleet.judge(ledger)
    if slot.kind is SlotKind.TRIAL and study.keep_settings():
        for note in study.kept_notes():
            watch(study.progress(ProgressKind.PREPARING, message=note.text))
    if slot.kind is SlotKind.TRIAL:
        trial = next((trial for trial in ledger.trials if trial.number == slot.number), None)
        what = {"number": slot.number, "configuration": job.configuration, "trial": trial}
        watch(
            study.progress(
                ProgressKind.CONFIRMED if slot.round else ProgressKind.TRIAL, message=fleet.pool.running, **what
            )
        )
