"""Rounds of the confirmation on the devices: each is a complete block on one of them, and several run side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core import Configuration, Interval, Trial
from autotune.core.errors import TimeIsOver
from autotune.core.measurement import pooled
from autotune.executors.pool import JOIN, Pool
from autotune.probe.order import ANSWER
from autotune.sampler.physics import Expected, PhysicsSampler
from autotune.space.dominance import implied_by
from autotune.study import devices
from autotune.study.confirm import Add, confirm
from autotune.study.finalists import finalists
from autotune.study.jobs import job_of, measured, progress
from autotune.study.loss_check import compare_losses, disqualify_flagged
from autotune.study.measure import keep, needs_too_much
from autotune.study.objective import best_trial, in_whole_rounds, leader
from autotune.study.pacing import can_be_composed, finishing_seconds, round_seconds
from autotune.study.plan import Watch
from autotune.study.probing import Probing
from autotune.study.reference import NAMES, is_wanted, loss_steps, next_reference, rounds_unreferred, whole_rounds
from autotune.study.store import REFERENCE, close_round, drop_round, open_round, reporting_storage
from autotune.study.study import Study


def confirm_finalists(probing: Probing) -> None:
    """Confirm the finalists and the baseline, as far as they are not yet and there is time.

    Several devices probe meanwhile what is proposed, which comes before rounds that have not begun.
    """
    study, pool, watch = probing.study, probing.pool, probing.watch
    plan = study.plan

    def confirmed(trial: Trial) -> None:
        what = {"number": trial.number, "configuration": trial.configuration, "trial": trial}
        watch(progress(study, "confirmed", message=pool.running, **what))

    # A round on one device can be completed later; what is left of one on several is dropped.
    several = pool.is_several or any(measured.device for trial in study.trials for measured in trial.confirmations)
    try:
        confirm(
            study.trials,
            plan.objective,
            plan.confirmation_rounds,
            lambda rounds, add: _run_rounds(probing, rounds, add),
            plan.time.seconds_left,
            lambda: finishing_seconds(study.trials, plan.objective),
            lambda: _expected(study),
            confirmed,
            lambda round_number: compare_rounds(study),
            plan.run_seconds(leader(study.trials, plan.objective)),
            lambda numbers: setattr(study, "racing", numbers),
            (lambda: max(1, len(pool.devices))) if several else None,
            plan.is_cpu,
            study.reference_seconds,
        )
        if late := missing_losses(study):
            _run_rounds(probing, dict.fromkeys(late, ()), lambda *measured: None)
            compare_rounds(study)
    except TimeIsOver:
        compare_rounds(study)
    study.racing = ()


def missing_losses(study: Study) -> list[int]:
    """The rounds in which the losses' reference is still to be trained, as there was no time."""
    wanted = bool(study.trials) and next_reference(study.plan, study.trials, study.references, study.products)
    return sorted(rounds_unreferred(study.trials, study.references)) if wanted else []


@dataclass
class _Round:
    """A round on its devices: what it measures still, and as what the losses' reference was started.

    devices: as many as the most ranks take; all else runs on the first. composed: whether long steps run few micro-steps.
    """

    devices: list[str]
    numbers: list[int]
    composed: bool = False
    references: list[Configuration] = field(default_factory=list)


def _run_rounds(probing: Probing, rounds: Mapping[int, Sequence[int]], add: Add) -> None:
    """Run rounds side by side, each as a whole on one device; one whose executor is lost is thrown away and run anew."""
    study, pool, watch = probing.study, probing.pool, probing.watch
    waiting, begun = dict(rounds), dict[int, _Round]()
    lost_on: dict[int, str] = {}
    time_over: TimeIsOver | None = None
    while waiting or begun:
        for number in list(begun):
            own = begun[number].devices
            if pool.left_out.keys() & {*own} and not any(map(pool.runs_on, own)):
                waiting[number] = rounds[number]
                _drop(study, number, rounds[number])
                del begun[number]
            elif {*own} <= {*pool.idle} and not (time_over or (study.wish.to_stop and pool.is_running)):
                _go_on(study, pool, watch, begun, number, add)
        if pool.is_several:
            probing.start()
        while waiting and not time_over and not (study.wish.to_stop and pool.is_running):
            study.wish.check()
            number = next(iter(waiting))
            width, avoided = _width(study, pool, waiting[number]), lost_on.get(number, "")
            free = [device for device in pool.idle if device not in _taken(begun)]
            free = pool.but(free, avoided) if width == 1 else sorted(free, key=lambda device: device == avoided)
            if len(free) < width:
                break
            begun[number] = _Round(free[:width], list(waiting.pop(number)), _is_composed(study, number))
            if pool.is_several and rounds[number]:
                with reporting_storage(study.folder):
                    open_round(study.folder, number)
            _go_on(study, pool, watch, begun, number, add)
        probing.compare(_taken(begun))
        if not pool.is_running:
            probing.raise_without_devices()
            if waiting or begun:
                study.wish.check()
                if time_over:
                    raise time_over
            continue
        ended = pool.wait()
        if not isinstance(ended.key, tuple):
            probing.take(ended)
            continue
        number, trial_number = ended.key
        if isinstance(ended.error, TimeIsOver):
            if trial_number != REFERENCE:
                time_over = ended.error
            continue
        is_reference = trial_number == REFERENCE
        configuration = begun[number].references[-1] if is_reference else _configuration(study, trial_number)
        measurement = measured(study, pool, configuration, ended)
        if ended.error is not None or measurement is None:
            _drop(study, number, rounds[number])
            del begun[number]
            waiting[number], lost_on[number] = rounds[number], ended.device
        if measurement is None:
            continue
        if ended.error is not None:
            with reporting_storage(study.folder):
                keep(study.probe_folder(trial_number, number), configuration, measurement)
        if is_reference:
            study.references[number] = replace(measurement, round=number, asked=configuration.values)
        else:
            add(trial_number, number, measurement)


def _taken(begun: Mapping[int, _Round]) -> set[str]:
    """Devices of rounds that have begun."""
    return {device for each in begun.values() for device in each.devices}


def _width(study: Study, pool: Pool, numbers: Sequence[int]) -> int:
    """How many devices a round of these trials takes; of none, the losses' reference."""
    configurations = [_configuration(study, number) for number in numbers]
    if not numbers and (reference := next_reference(study.plan, study.trials, study.references, study.products)):
        configurations = [reference]
    return min(max(1, len(pool.devices)), max(map(pool.width, configurations), default=1))


def _drop(study: Study, round_number: int, numbers: Sequence[int]) -> None:
    """Throw a round away, which was not whole; not if it was, and lacks the reference's losses alone (no numbers of trials)."""
    if not numbers:
        return
    with reporting_storage(study.folder):
        drop_round(study.folder, round_number)
    for index, trial in enumerate(study.trials):
        others = tuple(measured for measured in trial.confirmations if measured.round != round_number)
        study.trials[index] = replace(trial, confirmations=others)


def _configuration(study: Study, number: int) -> Configuration:
    """A trial's configuration."""
    return next(trial.configuration for trial in study.trials if trial.number == number)


def _go_on(
    study: Study,
    pool: Pool,
    watch: Watch,
    begun: dict[int, _Round],
    round_number: int,
    add: Add,
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
        at = this.devices[: pool.width(trial.configuration)]
        speed = _whole_speed(trial, round_number, JOIN.join(at)) if this.composed else None
        job = job_of(study, pool, trial.configuration, number, round_number, whole_speed=speed)
        pool.start((round_number, number), job, *at)
        return
    trains_elsewhere = any(other is not this and other.references for other in begun.values())
    if not trains_elsewhere and (reference := _next_reference(study, this, round_number)):
        name = NAMES[str(reference.values["precision"])]
        watch(progress(study, "confirming", message=f"{name}'s losses in round {round_number}"))
        (study.probe_folder(REFERENCE, round_number) / ANSWER).unlink(missing_ok=True)
        steps = loss_steps(study.trials, round_number)
        job = job_of(study, pool, reference, REFERENCE, round_number, losses=steps)
        pool.start((round_number, REFERENCE), job, *this.devices[: pool.width(reference)])
        return
    del begun[round_number]
    devices.judge(study, pool)
    if pool.is_several:
        close_round(study.folder, round_number)


def _is_composed(study: Study, round_number: int) -> bool:
    """True if long steps of this round run few micro-steps: not if a trial runs its first round, whose losses are compared."""
    return all(
        any(number < round_number for number in whole_rounds(trial))
        for trial in study.trials
        if trial.number in study.racing
    )


def _whole_speed(trial: Trial, round_number: int, device: str) -> Interval | None:
    """The trial's speed on this device in its rounds before this one that ran all micro-steps; None if this one is to run them
    too. Devices of one kind differ by more than a composed step may."""
    whole = whole_rounds(trial)
    if not can_be_composed(trial):
        return None
    pairs = zip(trial.rounds, trial.confirmations, strict=True)
    before = [
        measured
        for number, measured in pairs
        if number in whole and number < round_number and measured.device in ("", device)
    ]
    return pooled(before).samples_per_second if before else None


def _next_reference(study: Study, this: _Round, round_number: int) -> Configuration | None:
    """The next training of the losses' reference in this round; None if its losses are known, not needed or cannot be had, or
    there is no time for them."""
    plan, trials, trainings = study.plan, study.trials, study.references
    while (reference := next_reference(plan, trials, trainings, study.products)) and reference not in this.references:
        answer = implied_by(reference, trials)
        if answer is not None and answer.configuration == reference and round_number in whole_rounds(answer):
            measured = answer.confirmations[answer.rounds.index(round_number)]
            trainings[round_number] = replace(measured, asked=reference.values, round=round_number)
            return None
        if not is_wanted(plan, trials, trainings, round_number):
            return None
        if answer is None or answer.measurement.feasible:
            needed = round_number in rounds_unreferred(trials, trainings)
            others = [] if needed else [trial for trial in trials if trial.number in study.racing]
            further_s = sum(round_seconds(trial, plan.is_cpu) for trial in others)
            if study.reference_seconds() + further_s > plan.time.seconds_left():
                return None
            this.references.append(reference)
            return reference
        trainings[round_number] = replace(answer.measurement, asked=reference.values, round=round_number)
    return None


def compare_rounds(study: Study) -> None:
    """Compare the losses of all rounds so far; what does not learn as the reference does cannot win, unless that is allowed."""
    study.numerics = compare_losses(study.trials, study.references, study.plan.objective)
    if study.numerics and not study.plan.allow_loss_difference:
        disqualify_flagged(study.trials, study.numerics, study.plan.require_parity)


def missing_rounds(study: Study) -> str:
    """Which rounds the answer lacks for want of time; empty for none, and for a baseline that has no rival."""
    trials, needed = in_whole_rounds(study.trials, study.plan.objective), study.plan.confirmation_rounds
    best = best_trial(trials, study.plan.objective)
    if best is None or not study.plan.time.is_set or len(best.confirmations) >= needed:
        return ""
    if best.number == 0 and len(finalists(trials, study.plan.objective)) <= 1:
        return ""
    return f"{needed - len(best.confirmations)} of {needed} confirmation rounds"


def _expected(study: Study) -> Expected | None:
    sampler = study.optuna.sampler
    ours = isinstance(sampler, PhysicsSampler) and study.plan.objective == "samples_per_second"
    return sampler.expected(study.trials) if ours else None
