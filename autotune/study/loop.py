"""The loop: ask -> probe -> tell; every trial on disk before the next starts, resumed where it was killed.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
"""

import bisect
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.executors.pool import Ended, Job, Pool, as_pool, other_first
from autotune.probe import Probe
from autotune.probe.order import LOG
from autotune.sampler.optuna_samplers import make_sampler
from autotune.sampler.parameters import openings
from autotune.sampler.physics import Expected, PhysicsSampler, WarmStart
from autotune.space.dominance import SAME_CRASHES, crashing_values
from autotune.space.search_space import SearchSpace
from autotune.study import devices
from autotune.study.confirm import confirm
from autotune.study.loss_check import compare_losses, disqualify_flagged, reference_of
from autotune.study.measure import keep, measure, needs_too_much, unsupported
from autotune.study.objective import best_trial, finalists, speed_up
from autotune.study.pacing import finishing_seconds, reserved_seconds, seconds_to_go
from autotune.study.plan import Plan, Progress, Watch
from autotune.study.stopping import time_is_over
from autotune.study.store import (
    REFERENCE,
    close_round,
    drop_open_rounds,
    drop_round,
    open_round,
    read_references,
    read_trial,
    reporting_storage,
)
from autotune.study.study import PROBES, Study, ask, begin, propose, set_warm_start, tell

CRASHES_THAT_END = 6
"""The same crash so many times in a row, with no value to blame, ends the search: it is the machine."""


# Opening -------------------------------------------------------------------------------------------------------


def open_study(folder: Path, space: SearchSpace, plan: Plan, warm_start: WarmStart | None = None) -> Study:
    """Open or begin the study in a locked folder; what a killed search left unfinished is completed or put first in the queue.

    warm_start: of the sampler `physics`; by default nothing but the limit.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with reporting_storage(folder):
        record = optuna.create_study(
            storage=f"sqlite:///{(folder / 'study.db').absolute()}",
            study_name="autotune",
            direction="minimize" if plan.objective == "memory" else "maximize",
            load_if_exists=True,
        )
        study = Study(folder, record, space, plan)
        drop_open_rounds(folder)
        for old in record.get_trials(deepcopy=False):
            _restore_trial(study, old)
        study.trials = sorted(
            (trial.with_training_steps(plan.training_steps) for trial in study.trials), key=lambda trial: trial.number
        )
        first, *others = openings(space)
        others = [] if plan.sampler == "physics" else others
        study.queue = [*([] if study.trials else [first]), *study.queue, *others]
        study.references = read_references(folder)
        seed = plan.seed + len(record.get_trials(deepcopy=False))
    record.sampler = make_sampler(plan.sampler, seed, space, study.warm_start)
    set_warm_start(study, warm_start or study.warm_start)
    return study


def _restore_trial(study: Study, old: optuna.trial.FrozenTrial) -> None:
    """Restore an old trial: as recorded, from a measurement that was not recorded yet, or into the queue as interrupted."""
    number = old.user_attrs.get("number")
    if number is None:
        if old.state is TrialState.RUNNING:
            study.optuna.tell(old.number, state=TrialState.FAIL)
        return
    if old.user_attrs.get("interrupted"):
        return
    trial = read_trial(study.probe_folder(number), number)
    if old.state is not TrialState.RUNNING:
        if trial is not None:
            study.trials.append(trial)
        return
    configuration = Configuration.from_dict(old.user_attrs["configuration"])
    if trial is not None and trial.configuration == configuration:
        running = optuna.trial.Trial(study.optuna, old._trial_id)
        tell(study, running, configuration, trial.measurement)
        study.trials.append(trial)
    else:
        optuna.trial.Trial(study.optuna, old._trial_id).set_user_attr("interrupted", True)
        study.optuna.tell(old.number, state=TrialState.FAIL)
        study.queue.append(configuration)


def import_trials(study: Study, trials: Sequence[Trial]) -> int:
    """Import the trials of an earlier study of the same request, where this one has none; returns how many.

    Raises StorageFailed where the disk refuses.
    """
    reusable = [trial for trial in trials if _still_holds(trial, study.plan.allowed_bytes)]
    if study.trials or not reusable or reusable[0] != trials[0] or reusable[0].configuration != study.space.baseline:
        return 0
    with reporting_storage(study.folder):
        imported = (
            _under(study.plan.allowed_bytes, trial).with_training_steps(study.plan.training_steps) for trial in reusable
        )
        for number, trial in enumerate(imported):
            running = propose(study, trial.configuration)
            begin(study, running, trial.configuration)
            keep(study.probe_folder(number), trial.configuration, trial.measurement)
            for round_number, measurement in zip(trial.rounds, trial.confirmations, strict=True):
                keep(study.probe_folder(number, round_number), trial.configuration, measurement)
            tell(study, running, trial.configuration, trial.measurement)
            study.trials.append(replace(trial, number=number))
    study.queue.clear()
    return len(reusable)


def _still_holds(trial: Trial, allowed_bytes: int) -> bool:
    """Whether a trial would have ended under this limit as it did under its own."""
    if any(measurement.observed_warnings for measurement in (trial.measurement, *trial.confirmations)):
        return False
    if trial.measurement.outcome is Outcome.OUT_OF_MEMORY:
        return (trial.measurement.allowed_bytes or 0) >= allowed_bytes
    return trial.measurement.outcome not in (Outcome.CRASHED, Outcome.TIMED_OUT)


def _under(allowed_bytes: int, trial: Trial) -> Trial:
    """The trial with what it measured held against this limit."""
    measurement, *rounds = (
        replace(measurement, allowed_bytes=allowed_bytes) for measurement in (trial.measurement, *trial.confirmations)
    )
    return replace(trial, measurement=measurement, confirmations=tuple(rounds))


# The loop ------------------------------------------------------------------------------------------------------


def search(
    study: Study,
    probe: Probe | Pool,
    watch: Watch = lambda progress: None,
    warm_up: Callable[[], None] = lambda: None,
) -> str:
    """Probe until the budget is used or nothing is left to win, confirm, and continue where the rounds showed that more can be
    won; returns why it ended.

    probe: of one device, or the devices. warm_up: called before every proposal but the first, the baseline's, which needs no
    warm start.

    Raises SearchFailed where the baseline crashes, one crash comes again and again whatever the values or no device is left,
    StorageFailed where the disk refuses, TimeIsOver where the baseline was not measured in time, KeyboardInterrupt when the
    user interrupts: everything so far is kept.
    """
    pool = as_pool(probe)
    if study.trials:
        watch(progress(study, "resumed", message=f"resuming with {len(study.trials)} trial(s)"))
        _stop_where_it_crashes(study)
        compare_rounds(study)
    stop_reason = _probe_on(study, pool, watch, warm_up)
    while True:
        probed = len(study.trials)
        confirm_finalists(study, pool, watch)
        if not isinstance(study.optuna.sampler, PhysicsSampler):  # the others learn nothing of rounds
            break
        # Rounds tell more than one probe, and may have shown that it was a lucky one.
        stop_reason = _probe_on(study, pool, watch, warm_up)
        if len(study.trials) == probed:
            break
    watch(progress(study, "done", message=stop_reason))
    return stop_reason


def _probe_on(study: Study, pool: Pool, watch: Watch, warm_up: Callable[[], None]) -> str:
    """Ask, probe, tell, until there is a reason to end, which is returned once nothing runs."""
    study.left_out.clear()
    time_over = ""
    with _abandoning(study, pool):
        while True:
            stop_reason = time_over or _start_probes(study, pool, watch, warm_up)
            if not pool.is_running:
                return stop_reason
            ended = pool.wait()
            if isinstance(ended.key, str):  # the baseline on a further device
                devices.take_baseline(study, pool, ended)
                continue
            number, running, configuration = study.running[ended.key]
            if isinstance(ended.error, TimeIsOver):
                del study.running[number]
                if not study.trials and not study.running:
                    raise ended.error
                study.left_out += [] if time_over else [PROBES]
                time_over = time_is_over(study.plan)
                continue
            if (measurement := _measured(study, pool, configuration, ended, number)) is None:
                study.again.append((number, ended.device))
                continue
            with reporting_storage(study.folder):
                if ended.error is not None:
                    keep(study.probe_folder(number), configuration, measurement)
                tell(study, running, configuration, measurement)
            trial = Trial(number, configuration, measurement)
            del study.running[number]
            study.unlikely.discard(number)
            bisect.insort(study.trials, trial, key=lambda trial: trial.number)
            devices.judge(study, pool)
            watch(progress(study, "trial", number=number, configuration=configuration, trial=trial))
            _stop_where_it_crashes(study)


def _start_probes(study: Study, pool: Pool, watch: Watch, warm_up: Callable[[], None]) -> str:
    """Let idle devices probe what is proposed; why nothing is proposed, or nothing where all devices are busy."""
    while pool.idle:
        if pool.is_running and study.wish.to_stop:
            return ""
        study.wish.check()
        if study.again:
            number, lost_on = study.again.pop(0)
            device = other_first(pool.idle, lost_on)[0]
            _, _, configuration = study.running[number]
        else:
            device = pool.idle[0]
            is_first = not study.trials and not study.running
            if not is_first and devices.start_baseline(study, pool, device):
                continue
            if not study.trials and study.running:  # all else follows from the baseline
                return ""
            if study.running and len(study.trials) + len(study.running) >= study.plan.probes(study.trials):
                return ""
            if study.trials:
                warm_up()
            study.left_out.clear()
            with reporting_storage(study.folder):
                proposal, stop_reason = ask(study)
            if proposal is None:
                return stop_reason
            number, _, configuration = study.running[proposal[0]] = proposal
        message = "" if study.risk is None else f"may not fit ({study.risk:.0%} likely to)"
        watch(progress(study, "probing", number=number, configuration=configuration, message=message))
        pool.start(number, _job(study, configuration, number), device)
    devices.raise_without(pool)
    return ""


@contextlib.contextmanager
def _abandoning(study: Study, pool: Pool) -> Iterator[None]:
    """Within, jobs run; whatever ends it, none does after it."""
    try:
        yield
    finally:
        if pool.is_running:
            pool.abandon()
        study.running.clear()
        study.again.clear()
        study.unlikely.clear()


def _job(study: Study, configuration: Configuration, number: int, confirmation: int = 0) -> Job:
    """What a device does for a trial, or for one of its rounds: (seconds it took, measurement)."""
    if number == 0 and study.space.baseline_problem:
        measurement = unsupported(study.folder, configuration, study.space.baseline_problem)
        return lambda probe: (None, measurement)
    plan, trials = study.plan, tuple(study.trials)
    seconds = plan.time.cut(math.inf)
    if trials and not confirmation:
        seconds = plan.time.seconds_left() - reserved_seconds(plan, trials)

    def job(probe: Probe) -> tuple[float | None, Measurement]:
        started = time.monotonic()
        measurement = measure(
            study.folder, plan, trials, probe, configuration, number, confirmation, study.wish, seconds
        )
        return time.monotonic() - started, measurement

    return job


def _measured(study: Study, pool: Pool, configuration: Configuration, ended: Ended, number: int) -> Measurement | None:
    """The measurement of a job that ended; a crash where it lost a second executor, None where another one may run it."""
    if ended.error is not None:
        devices.raise_without(pool)
        study.losses[number] = study.losses.get(number, 0) + 1
        return devices.lost(configuration) if study.losses[number] >= devices.MOST_LOST else None
    seconds, measurement = ended.value
    if seconds is not None:
        study.pace.append((seconds, measurement.probe_seconds))
    kept: Measurement = measurement
    return kept


def _stop_where_it_crashes(study: Study) -> None:
    """Raise SearchFailed where the baseline crashed or the last crashes are one and the same, with no value to blame.

    Values that crash wherever they are, are only ruled out (`crashing_values`), unless nothing runs at all.
    """
    has_run = any(trial.measurement.outcome is Outcome.COMPLETED for trial in study.trials)
    most = CRASHES_THAT_END if has_run else SAME_CRASHES
    blamed = [values.items() for values, _ in crashing_values(study.trials) if len(values) == 1]
    last = study.trials[-most:]
    if study.trials and study.trials[0].measurement.outcome is Outcome.CRASHED:
        raise _crash(study, study.trials[0], "The baseline crashed")
    if len(last) < most or any(trial.measurement.outcome is not Outcome.CRASHED for trial in last):
        return
    if has_run and any(values <= trial.configuration.values.items() for trial in last for values in blamed):
        return
    if len({re.sub(r"\d+", "#", trial.measurement.reason) for trial in last}) == 1:
        raise _crash(study, last[-1], f"The same crash came {most} times in a row")


def _crash(study: Study, trial: Trial, what: str) -> SearchFailed:
    log, reason = study.probe_folder(trial.number) / LOG, trial.measurement.reason.rstrip(".")
    last = _last_line(trial.measurement.log_tail or log)
    detail = "" if last in reason or reason in last else f" ({last})"
    return SearchFailed(
        f"{what}: {reason}{detail}.", f"Its output is in {log}. Fix the cause, then search again with --fresh."
    )


def _last_line(text: str | Path) -> str:
    """The last line of a text or a file that is not empty, as much of it as a message needs."""
    with contextlib.suppress(OSError):
        text = text.read_text(errors="replace") if isinstance(text, Path) else text
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]
    return ""


def confirm_finalists(study: Study, probe: Probe | Pool, watch: Watch = lambda progress: None) -> None:
    """Confirm the finalists and the baseline, as far as they are not yet and there is time."""
    plan, pool = study.plan, as_pool(probe)

    def confirmed(trial: Trial) -> None:
        watch(progress(study, "confirmed", number=trial.number, configuration=trial.configuration, trial=trial))

    with contextlib.suppress(TimeIsOver):
        confirm(
            study.trials,
            plan.objective,
            plan.confirmation_rounds,
            _no_measure,
            plan.time.seconds_left,
            lambda: finishing_seconds(study.trials, plan.objective),
            lambda: _expected(study),
            confirmed,
            lambda round_number: compare_rounds(study),
            plan.run_seconds(best_trial(study.trials, plan.objective)),
            lambda numbers: setattr(study, "racing", numbers),
            lambda rounds, add: _run_rounds(study, pool, watch, rounds, add),
            lambda: len(pool.devices),
        )
    study.racing = ()


def _no_measure(trial: Trial, round_number: int) -> Measurement:
    raise AssertionError("rounds run on the devices")


@dataclass
class _Round:
    """A round on its device: what it measures still, and whether the losses' reference was started."""

    device: str
    numbers: list[int]
    referred: bool = False


def _run_rounds(
    study: Study,
    pool: Pool,
    watch: Watch,
    rounds: Mapping[int, Sequence[int]],
    add: Callable[[int, int, Measurement], None],
) -> None:
    """Run rounds side by side, each as a whole on one device; one whose executor is lost is thrown away and run anew."""
    waiting, begun = dict(rounds), dict[int, _Round]()
    lost_on: dict[int, str] = {}
    time_over: TimeIsOver | None = None
    with _abandoning(study, pool):
        while waiting or begun:
            for number in list(begun):
                if begun[number].device in pool.left_out and not pool.runs_on(begun[number].device):
                    waiting[number] = rounds[number]
                    _drop(study, number)
                    del begun[number]
                elif begun[number].device in pool.idle and not (time_over or (study.wish.to_stop and pool.is_running)):
                    _go_on(study, pool, watch, begun, number, add)
            taken = {each.device for each in begun.values()}
            free = [device for device in pool.idle if device not in taken]
            while waiting and free and not time_over and not (study.wish.to_stop and pool.is_running):
                study.wish.check()
                number = next(iter(waiting))
                device = other_first(free, lost_on.get(number, ""))[0]
                free.remove(device)
                begun[number] = _Round(device, list(waiting.pop(number)))
                if pool.is_several:
                    with reporting_storage(study.folder):
                        open_round(study.folder, number)
                _go_on(study, pool, watch, begun, number, add)
            if not pool.is_running:
                devices.raise_without(pool)
                if waiting or begun:
                    study.wish.check()
                    if time_over:
                        raise time_over
                continue
            ended = pool.wait()
            assert isinstance(ended.key, tuple)
            number, trial_number = ended.key
            if isinstance(ended.error, TimeIsOver):
                if trial_number != REFERENCE:
                    time_over = ended.error
                continue
            configuration = _configuration(study, trial_number)
            measurement = _measured(study, pool, configuration, ended, trial_number)
            if ended.error is not None:
                _drop(study, number)
                del begun[number]
                waiting[number], lost_on[number] = rounds[number], ended.device
            if measurement is None:
                continue
            if ended.error is not None:
                with reporting_storage(study.folder):
                    keep(study.probe_folder(trial_number, number), configuration, measurement)
            if trial_number == REFERENCE:
                study.references[number] = replace(measurement, round=number)
            else:
                add(trial_number, number, measurement)


def _drop(study: Study, round_number: int) -> None:
    """Throw a round away, which was not whole."""
    with reporting_storage(study.folder):
        drop_round(study.folder, round_number)
    for index, trial in enumerate(study.trials):
        others = tuple(measured for measured in trial.confirmations if measured.round != round_number)
        study.trials[index] = replace(trial, confirmations=others)


def _configuration(study: Study, number: int) -> Configuration:
    """A trial's configuration, or that of the losses' reference."""
    if number == REFERENCE:
        reference = reference_of(study.trials, best_trial(study.trials, study.plan.objective))
        return reference or study.space.baseline
    return next(trial.configuration for trial in study.trials if trial.number == number)


def _go_on(
    study: Study,
    pool: Pool,
    watch: Watch,
    begun: dict[int, _Round],
    round_number: int,
    add: Callable[[int, int, Measurement], None],
) -> None:
    """Start what a round measures next on its idle device; a round that is complete is no longer begun."""
    this, most = begun[round_number], study.plan.confirmation_rounds
    while this.numbers:
        number = this.numbers.pop(0)
        trial = next(trial for trial in study.trials if trial.number == number)
        if round_number in trial.rounds:
            continue
        study.wish.check()
        if starved := needs_too_much(study.folder, study.trials, trial, round_number):
            add(number, round_number, starved)
            continue
        where = f"round {round_number}{f' of {most}' if round_number <= most else ''}"
        where += f", {study.racing.index(number) + 1} of {len(study.racing)}"
        watch(progress(study, "confirming", number=number, configuration=trial.configuration, message=where))
        pool.start((round_number, number), _job(study, trial.configuration, number, round_number), this.device)
        return
    reference = reference_of(study.trials, best_trial(study.trials, study.plan.objective))
    if reference is not None and not this.referred and all(seen.feasible for seen in study.references.values()):
        this.referred = True
        watch(progress(study, "confirming", message=f"fp32's losses in round {round_number}"))
        for trial in study.trials:
            if trial.configuration == reference and round_number in trial.rounds:
                study.references[round_number] = trial.confirmations[trial.rounds.index(round_number)]
                break
        else:
            job = _job(study, reference, REFERENCE, round_number)
            pool.start((round_number, REFERENCE), job, this.device)
            return
    del begun[round_number]
    devices.judge(study, pool)
    if pool.is_several:
        close_round(study.folder, round_number)


def compare_rounds(study: Study) -> None:
    """Compare the losses of all rounds so far; what does not learn as the reference does cannot win, unless that is allowed."""
    study.numerics = compare_losses(study.trials, study.references)
    if study.numerics and not study.plan.allow_loss_difference:
        disqualify_flagged(study.trials, study.numerics, study.plan.require_parity)


def missing_rounds(study: Study) -> str:
    """Which rounds the answer lacks for want of time; empty for none, and for a baseline that has no rival."""
    best, needed = best_trial(study.trials, study.plan.objective), study.plan.confirmation_rounds
    if best is None or not study.plan.time.is_set or len(best.confirmations) >= needed:
        return ""
    if best.number == 0 and len(finalists(study.trials, study.plan.objective)) <= 1:
        return ""
    return f"{needed - len(best.confirmations)} of {needed} confirmation rounds"


def _expected(study: Study) -> Expected | None:
    sampler = study.optuna.sampler
    ours = isinstance(sampler, PhysicsSampler) and study.plan.objective == "samples_per_second"
    return sampler.expected(study.trials) if ours else None


# Small things --------------------------------------------------------------------------------------------------


def progress(study: Study, kind: str, **what: Any) -> Progress:
    """Where the study stands, for those who watch."""
    plan = study.plan
    best = best_trial(study.trials, plan.objective)
    return Progress(
        kind,
        tuple(study.trials),
        best=best,
        speedup=speed_up(best, study.trials[0], plan.objective)[0] if best else None,
        max_gain=study.max_gain,
        probes_left=max(0, plan.probes(study.trials) - len(study.trials)),
        seconds_left=plan.time.seconds_left() if plan.time.is_set else None,
        seconds_to_go=seconds_to_go(plan, study.trials, kind not in ("finishing", "done"), study.racing, study.pace),
        folder=study.folder,
        **what,
    )
