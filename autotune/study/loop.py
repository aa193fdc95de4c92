"""The loop: ask -> probe -> tell; every trial on disk before the next starts, resumed where it was killed.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
"""

import bisect
import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.trial import TrialState

from autotune.core import Configuration, Outcome, Trial
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.executors.pool import Pool, as_pool, other_first
from autotune.probe import Probe
from autotune.probe.order import LOG
from autotune.sampler.optuna_samplers import make_sampler
from autotune.sampler.parameters import openings
from autotune.sampler.physics import PhysicsSampler, WarmStart
from autotune.space.dominance import SAME_CRASHES, crashing_values
from autotune.space.search_space import SearchSpace
from autotune.study import devices
from autotune.study.jobs import abandoning, job_of, measured, progress
from autotune.study.measure import keep
from autotune.study.plan import Plan, Watch
from autotune.study.rounds import compare_rounds, confirm_finalists
from autotune.study.stopping import time_is_over
from autotune.study.store import (
    drop_open_rounds,
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
    with abandoning(study, pool):
        while True:
            stop_reason = time_over or _start_probes(study, pool, watch, warm_up)
            if not pool.is_running:
                return stop_reason
            ended = pool.wait()
            if isinstance(ended.key, str):  # the baseline on a further device
                devices.take_baseline(study, pool, ended)
                continue
            assert isinstance(ended.key, int)
            number, running, configuration = study.running[ended.key]
            if isinstance(ended.error, TimeIsOver):
                del study.running[number]
                if not study.trials and not study.running:
                    raise ended.error
                study.left_out += [] if time_over else [PROBES]
                time_over = time_is_over(study.plan)
                continue
            if (measurement := measured(study, pool, configuration, ended, number)) is None:
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
        pool.start(number, job_of(study, configuration, number), device)
    devices.raise_without(pool)
    return ""


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
