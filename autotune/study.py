"""The loop: ask -> probe -> tell; every trial on disk before the next starts, resumed where it was killed.

<folder>/request.json            what is searched, and what makes this study the one it is
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
"""

import contextlib
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from autotune.configuration import Configuration
from autotune.confirmation import confirm
from autotune.dominance import settled_by
from autotune.errors import SearchFailed
from autotune.measurement import Measurement, Outcome
from autotune.measuring import measure, unsupported
from autotune.objective import best_trial, value
from autotune.plan import Plan, Progress, Watch
from autotune.probe import Probe
from autotune.sampler import configuration_of, distributions, fixed_sampler, make_sampler, openings, parameters
from autotune.search_space import SearchSpace
from autotune.study_folder import probe_folder, read_trial, reporting_storage
from autotune.trial import Trial
from autotune.units import format_seconds

KNOWN_IN_A_ROW = 200
"""Proposals in a row that are already answered after which everything counts as known."""

WALKED_THROUGH = 5000
"""Configurations up to which a space is walked through to see whether anything is left."""

SAME_CRASHES = 3
"""The same crash so many times running ends the search."""


@dataclass
class Study:
    """An open study: its folder (locked), Optuna's record, and the trials so far, in the order of their numbers."""

    folder: Path
    optuna: optuna.Study
    space: SearchSpace
    plan: Plan
    trials: list[Trial] = field(default_factory=list)
    queue: list[Configuration] = field(default_factory=list)
    answered_at_once: int = 0

    def probe_folder(self, number: int, confirmation: int = 0) -> Path:
        """Where a trial's files go."""
        return probe_folder(self.folder, number, confirmation)


# Opening -------------------------------------------------------------------------------------------------------


def open_study(folder: Path, space: SearchSpace, plan: Plan) -> Study:
    """Open or begin the study in a locked folder; what a killed search left half is told or put first in the queue."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with reporting_storage(folder):
        record = optuna.create_study(
            storage=f"sqlite:///{(folder / 'study.db').absolute()}",
            study_name="autotune",
            direction="minimize" if plan.objective == "memory" else "maximize",
            load_if_exists=True,
        )
        study = Study(folder, record, space, plan)
        for old in record.get_trials(deepcopy=False):
            _take_up(study, old)
        study.trials.sort(key=lambda trial: trial.number)
        first, *others = openings(space)
        study.queue = [*([] if study.trials else [first]), *study.queue, *others]
        seed = plan.seed + len(record.get_trials(deepcopy=False))
    record.sampler = make_sampler(plan.sampler, seed)
    return study


def _take_up(study: Study, old: optuna.trial.FrozenTrial) -> None:
    """Take an old trial up: as told, from the measurement it left untold, or into the queue as interrupted."""
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
        _tell(study, running, trial.measurement)
        study.trials.append(trial)
    else:
        optuna.trial.Trial(study.optuna, old._trial_id).set_user_attr("interrupted", True)
        study.optuna.tell(old.number, state=TrialState.FAIL)
        study.queue.append(configuration)


# The loop ------------------------------------------------------------------------------------------------------


def search(study: Study, probe: Probe, watch: Watch = lambda progress: None) -> str:
    """Probe until the plan is over or all is known, then confirm; returns the statement why it ended.

    Raises SearchFailed where the baseline crashes or one crash comes three times running, StorageFailed where the disk
    refuses, KeyboardInterrupt when the user interrupts: everything so far is kept.
    """
    begun = time.monotonic()
    if study.trials:
        watch(progress(study, "resumed", begun, message=f"going on with {len(study.trials)} trial(s)"))
        _stop_where_it_crashes(study)
    statement = ""
    while not statement:
        statement = _why_stop(study, begun)
        if statement:
            break
        with reporting_storage(study.folder):
            asked = _ask(study)
        if asked is None:
            statement = _all_is_known(study)
            break
        number, running, configuration = asked
        watch(progress(study, "probing", begun, number=number, configuration=configuration))
        measurement = _measure(study, probe, configuration, number)
        with reporting_storage(study.folder):
            _tell(study, running, measurement)
        trial = Trial(number, configuration, measurement)
        study.trials.append(trial)
        watch(progress(study, "trial", begun, number=number, configuration=configuration, trial=trial))
        _stop_where_it_crashes(study)
    confirm_finalists(study, probe, watch, begun)
    watch(progress(study, "done", begun, message=statement))
    return statement


def _why_stop(study: Study, begun: float) -> str:
    """Why to stop now, or nothing."""
    plan = study.plan
    if len(study.trials) >= plan.n_trials:
        return f"the budget of {plan.n_trials} trials is used"
    if study.trials and _time_is_over(study, begun):
        return f"the time of {format_seconds(plan.timeout_s or 0)} is over"
    return ""


def _time_is_over(study: Study, begun: float) -> bool:
    return study.plan.timeout_s is not None and time.monotonic() - begun >= study.plan.timeout_s


def _ask(study: Study) -> tuple[int, optuna.Trial, Configuration] | None:
    """The next configuration that nothing answers for yet, the queue's first; None where there is none.

    A proposal that is known or settled is told at once, marked, and not counted.
    """
    while study.queue:
        configuration = study.queue.pop(0)
        if settled_by(configuration, study.trials) is None:
            return _begin(study, _propose(study, configuration), configuration)
    if _all_known(study):
        return None
    for _ in range(KNOWN_IN_A_ROW):
        running = _propose(study)
        configuration = configuration_of(study.space, running.params)
        answer = settled_by(configuration, study.trials)
        if answer is None and configuration in study.space:
            return _begin(study, running, configuration)
        running.set_user_attr("answered_by", answer.number if answer else "outside --only")
        same = answer is not None and answer.configuration == configuration and answer.measurement.feasible
        _finish(study, running, answer.measurement if same and answer else None)
        study.answered_at_once += 1
    return None


def _propose(study: Study, configuration: Configuration | None = None) -> optuna.Trial:
    """A new trial of the sampler's choice, or of this configuration.

    Not by Optuna's own queue: what waits there when a search is killed would come before what was interrupted.
    """
    if configuration is None:
        return study.optuna.ask(distributions(study.space))
    sampler = study.optuna.sampler
    study.optuna.sampler = fixed_sampler(parameters(study.space, configuration), sampler)
    try:
        return study.optuna.ask(distributions(study.space))
    finally:
        study.optuna.sampler = sampler


def _begin(
    study: Study, running: optuna.Trial, configuration: Configuration
) -> tuple[int, optuna.Trial, Configuration]:
    number = study.trials[-1].number + 1 if study.trials else 0
    running.set_user_attr("configuration", configuration.to_dict())
    running.set_user_attr("number", number)  # last: whoever reads a number finds a configuration
    return number, running, configuration


def _all_is_known(study: Study) -> str:
    """What is true when nothing new is proposed: the whole space was walked through, or only asked about in vain."""
    if study.space.size <= WALKED_THROUGH:
        return "every configuration of the space is known or settled"
    return f"{KNOWN_IN_A_ROW} proposals in a row were known or settled already"


def _all_known(study: Study) -> bool:
    """Whether the trials answer for every configuration of a space small enough to walk through."""
    if study.space.size > WALKED_THROUGH:
        return False
    return all(settled_by(configuration, study.trials) for configuration in study.space)


def _tell(study: Study, running: optuna.Trial, measurement: Measurement) -> None:
    running.set_user_attr("outcome", measurement.outcome.value)
    running.set_user_attr("ended_early", measurement.ended_early)
    if measurement.outcome is Outcome.CRASHED:
        with contextlib.suppress(RuntimeError):  # brute force, as in _finish
            study.optuna.tell(running, state=TrialState.FAIL)
    else:
        _finish(study, running, measurement)


def _finish(study: Study, running: optuna.Trial, measurement: Measurement | None) -> None:
    """Tell COMPLETE with a value and the one constraint; the worst of both for no measurement."""
    plan = study.plan
    worst = float(plan.memory_limit_bytes) if plan.objective == "memory" else 0.0
    told = value(measurement, plan.objective, plan.memory_limit_bytes) if measurement else worst
    running.set_constraint("fits", measurement.fits if measurement else 1.0)
    # Brute force stops Optuna's own loop once it has seen all; ours asks it.
    with contextlib.suppress(RuntimeError):
        study.optuna.tell(running, told, skip_if_finished=True)


def _measure(
    study: Study, probe: Probe, configuration: Configuration, number: int, confirmation: int = 0
) -> Measurement:
    if number == 0 and study.space.baseline_problem:
        return unsupported(study.folder, configuration, study.space.baseline_problem)
    return measure(study.folder, study.plan, study.trials, probe, configuration, number, confirmation)


def _stop_where_it_crashes(study: Study) -> None:
    """Raise SearchFailed where the baseline crashed or the last crashes are one and the same."""
    crashed = [trial for trial in study.trials[-SAME_CRASHES:] if trial.measurement.outcome is Outcome.CRASHED]
    if study.trials and study.trials[0].measurement.outcome is Outcome.CRASHED:
        raise _crash(study, study.trials[0], "The baseline crashed")
    if len(crashed) == SAME_CRASHES and len({re.sub(r"\d+", "#", trial.measurement.reason) for trial in crashed}) == 1:
        raise _crash(study, crashed[-1], f"The same crash came {SAME_CRASHES} times running")


def _crash(study: Study, trial: Trial, what: str) -> SearchFailed:
    log = study.probe_folder(trial.number) / "log.txt"
    tail = "\n".join(trial.measurement.log_tail.strip().splitlines()[-30:]) or _last_lines(log)
    return SearchFailed(
        f"{what}: {trial.measurement.reason}.",
        f"Mend it and search again with --fresh. Its whole output is in {log}; the end of it:\n{tail}",
    )


def _last_lines(path: Path, lines: int = 30) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").strip().splitlines()[-lines:])
    return ""


def confirm_finalists(
    study: Study, probe: Probe, watch: Watch = lambda progress: None, begun: float | None = None
) -> None:
    """Confirm the finalists and the baseline, as far as they are not yet; begun: when the search did (monotonic clock)."""
    plan, begun = study.plan, time.monotonic() if begun is None else begun

    def once_more(trial: Trial, one_round: int) -> Measurement:
        watch(progress(study, "confirming", begun, number=trial.number, configuration=trial.configuration))
        measurement = _measure(study, probe, trial.configuration, trial.number, one_round)
        done = replace(trial, confirmations=(*trial.confirmations, measurement))
        told = progress(study, "confirmed", begun, number=trial.number, configuration=trial.configuration, trial=done)
        watch(told)
        return measurement

    confirm(study.trials, plan.objective, plan.confirmation_rounds, once_more, lambda: _time_is_over(study, begun))


# Small things --------------------------------------------------------------------------------------------------


def progress(study: Study, kind: str, begun: float | None = None, **what: Any) -> Progress:
    """Where the study stands, for those who watch; begun: when the search did (monotonic clock)."""
    plan = study.plan
    left = None
    if plan.timeout_s is not None and begun is not None:
        left = max(0.0, plan.timeout_s - (time.monotonic() - begun))
    return Progress(
        kind,
        tuple(study.trials),
        best=best_trial(study.trials, plan.objective),
        probes_left=max(0, plan.n_trials - len(study.trials)),
        seconds_left=left,
        **what,
    )
