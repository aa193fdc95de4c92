"""The loop: ask -> probe -> tell; every trial on disk before the next starts, resumed where it was killed.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from autotune.core import Configuration, Outcome, Trial
from autotune.core.units import counted
from autotune.executors.pool import Pool, as_pool
from autotune.probe import Probe
from autotune.sampler.optuna_samplers import make_sampler
from autotune.sampler.parameters import openings
from autotune.sampler.physics import PhysicsSampler, WarmStart
from autotune.space.dominance import TOO_FEW_DEVICES
from autotune.space.search_space import SearchSpace
from autotune.study.jobs import abandoning, progress
from autotune.study.measure import keep
from autotune.study.plan import Plan, Watch
from autotune.study.probing import Probing, stop_where_it_crashes
from autotune.study.rounds import compare_rounds, confirm_finalists
from autotune.study.store import (
    discard_damaged,
    drop_open_rounds,
    read_peaks,
    read_prospects,
    read_references,
    read_trial,
    reporting_storage,
)
from autotune.study.study import BUSY, Study, begin, propose, set_warm_start, tell

# Opening -------------------------------------------------------------------------------------------------------


def open_study(folder: Path, space: SearchSpace, plan: Plan, warm_start: WarmStart | None = None) -> Study:
    """Open or begin the study in a locked folder; what a killed search left unfinished is completed or put first in the queue.

    warm_start: of the sampler `physics`; by default nothing but the limit.
    """
    from sqlalchemy.pool import NullPool  # as Optuna does: nobody waits for it who only asks for help

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with reporting_storage(folder):
        record = optuna.create_study(
            # A connection for each use: one that is kept stays open until Python collects it.
            storage=RDBStorage(f"sqlite:///{(folder / 'study.db').absolute()}", {"poolclass": NullPool}),
            study_name="autotune",
            direction="minimize" if plan.objective == "memory" else "maximize",
            load_if_exists=True,
        )
        study = Study(folder, record, space, plan)
        drop_open_rounds(folder)
        _restore(study)
        first, *others = openings(space)
        others = [] if plan.sampler == "physics" else others
        study.queue = [*([] if study.trials else [first]), *study.queue, *others]
        study.references = read_references(folder, study.damage)
        read_prospects(folder, study.damage)
        read_peaks(folder, study.damage)
        discard_damaged(folder, study.damage)
        seed = plan.seed + len(record.get_trials(deepcopy=False))
    record.sampler = make_sampler(plan.sampler, seed, space, study.warm_start)
    set_warm_start(study, warm_start or study.warm_start)
    return study


def _restore(study: Study) -> None:
    """Restore the trials of Optuna's record; those that cannot be read go first into the queue, the baseline before all else."""
    records: dict[int, list[optuna.trial.FrozenTrial]] = {}
    for old in study.optuna.get_trials(deepcopy=False):
        number = old.user_attrs.get("number")
        if number is not None and not old.user_attrs.get("interrupted"):
            records.setdefault(number, []).append(old)
        elif number is None and old.state is TrialState.RUNNING:
            study.optuna.tell(old.number, state=TrialState.FAIL)
    for number, of_it in records.items():
        _restore_trial(study, number, of_it)
    study.trials = sorted(
        (trial.with_training_steps(study.plan.training_steps) for trial in study.trials), key=lambda trial: trial.number
    )
    study.queue[:0] = [configuration for _, configuration in sorted(study.lost.items())]
    if 0 in study.lost:  # all else is measured against it
        study.waiting, study.trials = study.trials, []


def _restore_trial(study: Study, number: int, records: Sequence[optuna.trial.FrozenTrial]) -> None:
    """Restore a trial from its records, several if it was measured again: as recorded, from a measurement that was not
    recorded yet, or into the queue as interrupted; one whose files cannot be read is lost."""
    *earlier, last = records
    configuration = Configuration.from_dict(last.user_attrs["configuration"])
    trial = read_trial(study.probe_folder(number), number, study.damage)
    if trial is not None:
        rounds = tuple(measured for measured in trial.confirmations if measured.where != TOO_FEW_DEVICES)
        trial = replace(trial, confirmations=rounds)
    if last.state is TrialState.RUNNING:
        running = optuna.trial.Trial(study.optuna, last._trial_id)
        if trial is not None and trial.configuration == configuration:
            tell(study, running, configuration, trial.measurement)
            study.trials.append(trial)
            return
        running.set_user_attr("interrupted", True)
        study.optuna.tell(last.number, state=TrialState.FAIL)
        if not earlier:
            study.queue.append(configuration)
            return
    elif trial is not None:
        # What lacked devices may have them now.
        if not (number and trial.measurement.where == TOO_FEW_DEVICES):
            study.trials.append(trial)
        return
    study.lost[number] = configuration


def import_trials(study: Study, trials: Sequence[Trial]) -> int:
    """Import the trials of an earlier study of the same request, where this one has none; returns how many.

    Raises StorageFailed where the disk refuses.
    """
    reusable = [trial for trial in trials if _still_holds(trial, study.plan.allowed_bytes)]
    if (
        study.trials
        or study.waiting
        or not reusable
        or reusable[0] != trials[0]
        or reusable[0].configuration != study.space.baseline
    ):
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
    if study.trials or study.waiting:
        watch(progress(study, "resumed", message="; ".join(_resuming(study))))
    if study.trials:
        stop_where_it_crashes(study)
        compare_rounds(study)
    probing = Probing(study, pool, watch, warm_up)
    with abandoning(study, pool):
        stop_reason = _probe_on(probing)
        while True:
            probed = len(study.trials)
            confirm_finalists(probing)
            if not isinstance(study.optuna.sampler, PhysicsSampler):  # the others learn nothing of rounds
                break
            # Rounds tell more than one probe, and may have shown that it was a lucky one.
            stop_reason = _probe_on(probing)
            if len(study.trials) == probed:
                break
        while pool.is_running:  # what devices repeat to be compared
            probing.take(pool.wait())
    watch(progress(study, "done", message=stop_reason))
    return stop_reason


def _resuming(study: Study) -> Iterator[str]:
    """What a search resumes with, and which files are measured or made again."""
    yield f"resuming with {counted(len(study.trials) + len(study.waiting), 'trial')}"
    for path, why in study.damage.items():
        yield f"{path.relative_to(study.folder)} cannot be read ({why})"
    for number in sorted(study.lost):
        yield f"{f'trial {number} is' if number else 'your own settings are'} measured again"


def _probe_on(probing: Probing) -> str:
    """Ask, probe, tell, until there is a reason to end, which is returned once no probe runs.

    Where nothing is left to win unless what runs does better than expected, the best so far is confirmed meanwhile, once there
    are idle devices for all rounds that it needs, and no more than half of them all probe: earlier or with fewer took longer in
    the replay (reports/executors.md).
    """
    study, pool = probing.study, probing.pool
    study.left_out.clear()
    probing.time_over = ""
    while True:
        stop_reason = probing.start()
        if not study.running:
            return stop_reason
        most = min(study.plan.confirmation_rounds, len(pool.devices) - 1)
        if (
            stop_reason not in ("", BUSY)
            and 2 * len(study.running) <= len(pool.devices)
            and 2 <= most <= len(pool.idle)
        ):
            confirm_finalists(probing)
            if not pool.is_running:
                continue
        probing.compare()
        probing.take(pool.wait())
