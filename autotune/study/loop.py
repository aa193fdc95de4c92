"""The loop: ask -> probe -> tell; every trial on disk before the next starts, resumed where it was killed.

<folder>/request.json            what is searched, and what tells this study from others
         study.db                Optuna's own record, for its samplers
         probes/0007/            order, measurement and log of trial 7
         probes/0007/confirmation-1/
"""

import contextlib
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from autotune.core import Configuration, Measurement, Outcome, Trial
from autotune.core.errors import SearchFailed, TimeIsOver
from autotune.probe import Probe
from autotune.probe.order import LOG
from autotune.sampler.optuna_samplers import make_sampler
from autotune.sampler.parameters import openings
from autotune.sampler.physics import Expected, PhysicsSampler, WarmStart
from autotune.space.dominance import SAME_CRASHES, crashing_values
from autotune.space.search_space import SearchSpace
from autotune.study.confirm import confirm
from autotune.study.loss_check import compare_losses, disqualify_flagged, reference_of
from autotune.study.measure import keep, measure, needs_too_much, unsupported
from autotune.study.objective import best_trial, finalists, speed_up
from autotune.study.pacing import finishing_seconds, reserved_seconds, seconds_to_go
from autotune.study.plan import Plan, Progress, Watch
from autotune.study.stopping import time_is_over
from autotune.study.store import REFERENCE, read_references, read_trial, reporting_storage
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
    study: Study, probe: Probe, watch: Watch = lambda progress: None, warm_up: Callable[[], None] = lambda: None
) -> str:
    """Probe until the budget is used or nothing is left to win, confirm, and continue where the rounds showed that more can be
    won; returns why it ended.

    warm_up: called before every proposal but the first, the baseline's, which needs no warm start.

    Raises SearchFailed where the baseline crashes or one crash comes again and again whatever the values, StorageFailed where
    the disk refuses, TimeIsOver where the baseline was not measured in time, KeyboardInterrupt when the user interrupts:
    everything so far is kept.
    """
    if study.trials:
        watch(progress(study, "resumed", message=f"resuming with {len(study.trials)} trial(s)"))
        _stop_where_it_crashes(study)
        compare_rounds(study)
    stop_reason = _probe_on(study, probe, watch, warm_up)
    while True:
        probed = len(study.trials)
        confirm_finalists(study, probe, watch)
        if not isinstance(study.optuna.sampler, PhysicsSampler):  # the others learn nothing of rounds
            break
        # Rounds tell more than one probe, and may have shown that it was a lucky one.
        stop_reason = _probe_on(study, probe, watch, warm_up)
        if len(study.trials) == probed:
            break
    watch(progress(study, "done", message=stop_reason))
    return stop_reason


def _probe_on(study: Study, probe: Probe, watch: Watch, warm_up: Callable[[], None]) -> str:
    """Ask, probe, tell, until there is a reason to end, which is returned."""
    study.left_out.clear()
    while True:
        study.wish.check()
        if study.trials:
            warm_up()
        with reporting_storage(study.folder):
            proposal, stop_reason = ask(study)
        if proposal is None:
            return stop_reason
        number, running, configuration = proposal
        message = "" if study.risk is None else f"may not fit ({study.risk:.0%} likely to)"
        watch(progress(study, "probing", number=number, configuration=configuration, message=message))
        try:
            measurement = _measure(study, probe, configuration, number)
        except TimeIsOver:
            if not study.trials:
                raise
            study.left_out.append(PROBES)
            return time_is_over(study.plan)
        with reporting_storage(study.folder):
            tell(study, running, configuration, measurement)
        trial = Trial(number, configuration, measurement)
        study.trials.append(trial)
        watch(progress(study, "trial", number=number, configuration=configuration, trial=trial))
        _stop_where_it_crashes(study)


def _measure(
    study: Study, probe: Probe, configuration: Configuration, number: int, confirmation: int = 0
) -> Measurement:
    if number == 0 and study.space.baseline_problem:
        return unsupported(study.folder, configuration, study.space.baseline_problem)
    plan, trials = study.plan, study.trials
    seconds = plan.time.cut(math.inf)
    if trials and not confirmation:
        seconds = plan.time.seconds_left() - reserved_seconds(plan, trials)
    started = time.monotonic()
    measurement = measure(study.folder, plan, trials, probe, configuration, number, confirmation, study.wish, seconds)
    study.pace.append((time.monotonic() - started, measurement.probe_seconds))
    return measurement


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


def confirm_finalists(study: Study, probe: Probe, watch: Watch = lambda progress: None) -> None:
    """Confirm the finalists and the baseline, as far as they are not yet and there is time."""
    plan = study.plan

    def once_more(trial: Trial, one_round: int) -> Measurement:
        study.wish.check()
        if starved := needs_too_much(study.folder, study.trials, trial, one_round):
            return starved
        where = f"round {one_round}{f' of {plan.confirmation_rounds}' if one_round <= plan.confirmation_rounds else ''}"
        where += f", {study.racing.index(trial.number) + 1} of {len(study.racing)}"
        watch(progress(study, "confirming", number=trial.number, configuration=trial.configuration, message=where))
        return _measure(study, probe, trial.configuration, trial.number, one_round)

    def confirmed(trial: Trial) -> None:
        watch(progress(study, "confirmed", number=trial.number, configuration=trial.configuration, trial=trial))

    def compare(round_number: int) -> None:
        reference = reference_of(study.trials, best_trial(study.trials, plan.objective))
        if reference is not None and all(measured.feasible for measured in study.references.values()):
            with contextlib.suppress(TimeIsOver):
                watch(progress(study, "confirming", message=f"fp32's losses in round {round_number}"))
                study.references[round_number] = _reference(study, probe, reference, round_number)
        compare_rounds(study)

    with contextlib.suppress(TimeIsOver):
        confirm(
            study.trials,
            plan.objective,
            plan.confirmation_rounds,
            once_more,
            plan.time.seconds_left,
            lambda: finishing_seconds(study.trials, plan.objective),
            lambda: _expected(study),
            confirmed,
            compare,
            plan.run_seconds(best_trial(study.trials, plan.objective)),
            lambda numbers: setattr(study, "racing", numbers),
        )
    study.racing = ()


def _reference(study: Study, probe: Probe, configuration: Configuration, round_number: int) -> Measurement:
    """What the reference did in this round: as measured where a trial has its configuration, else in a run of its own."""
    for trial in study.trials:
        if trial.configuration == configuration and round_number in trial.rounds:
            return trial.confirmations[trial.rounds.index(round_number)]
    measurement = _measure(study, probe, configuration, REFERENCE, round_number)
    return replace(measurement, round=round_number)


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
