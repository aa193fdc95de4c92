"""Schedule: what a search does next, as it follows from what is measured and what runs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.core import Configuration, Interval, Measurement, Trial
from autotune.core.measurement import JOIN, pooled
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import StopReason
from autotune.sampler.parameters import openings
from autotune.sampler.physics import PhysicsSampler, Situation
from autotune.sampler.policy import FIRST_PROBES, P_FIT_CERTAIN, RISKS, Choice, End, Why
from autotune.space.dominance import TOO_FEW_DEVICES, implied_by
from autotune.space.substitute import MOST_TRIED, changes_of, compared_with, substitute
from autotune.study.fleet import Fleet
from autotune.study.job import Done, Job, NextStep, Wait
from autotune.study.measure import needs_too_much, unsupported
from autotune.study.objective import best_trial, is_shown, leader
from autotune.study.pacing import can_be_composed, round_seconds
from autotune.study.reference import NAMES, is_wanted, loss_steps, next_reference, rounds_unreferred, whole_rounds
from autotune.study.stopping import stop_reason
from autotune.study.study import Study

PROBES = "further probes"
"""Left out by a search whose time is over before its other budget."""

FITS_BELOW = 0.95
"""Share of the allowed memory, and of the estimate of a baseline that ran out of it, up to which an estimate fits."""

MESSAGES = {
    Why.COMPARE: "measured again, to find the fastest",
    Why.PROVE: "measured again, to prove the speed-up",
}
"""Messages of a configuration that is measured again."""


def next_job(study: Study, fleet: Fleet) -> NextStep:
    """The next job of the search, or why none begins now.

    First the probes that were interrupted or lost; then what the sampler chooses; then what the answer still lacks, and for a
    device that has nothing else to do what others did.

    Raises TimeIsOver if there is no time for the baseline.
    """
    pool = fleet.pool
    if study.stop_request.to_stop and pool.is_running:
        return Wait()
    idle = [*pool.idle]
    step = _measurement(study, fleet, idle)
    if isinstance(step, Job):
        return step
    return _calibration(study, fleet, idle) or (Wait() if step is None or pool.is_running or not pool.devices else step)


def _measurement(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | Done | None:
    """The next measurement of a trial or of the losses' reference.

    Done if there is none any more, and why; None if something else has to end first.
    """
    ledger, plan, pool = study.ledger, study.plan, fleet.pool
    running = {job.slot.number for job in fleet.jobs if job.slot.kind is SlotKind.TRIAL and not job.slot.round}
    if (given_up := _out_of_time(study)) is not None:
        if not ledger.trials and not running:
            raise plan.time.too_late("your own settings were measured")
        slot, reason = given_up
        return Done(reason, (PROBES,) * (not slot.round))
    for number, configuration in sorted(ledger.unfinished.items()):
        if number in running:
            continue
        able = pool.without(idle, fleet.avoided(Slot(number)))
        ranks = pool.devices_needed(configuration)
        if able and len(idle) < ranks <= len(pool.devices):  # it is next, once so many are idle
            return None
        if able:
            job = Job(Slot(number), configuration, risk=ledger.risks.get(number))
            return _probe(study, fleet, _on(job, able[0], idle, ranks))
    able = [device for device in idle if not fleet.is_suspect(device)]
    if not able and not pool.is_running:  # none of them is above suspicion
        able = [*idle]
    if not able or (ledger.unfinished and not ledger.trials):  # all else follows from the baseline
        return None
    step = _chosen(study, fleet, _by_experience(study, able))
    if not isinstance(step, Job) or not step.devices:
        return step
    job, ranks = step, pool.devices_needed(step.configuration)
    if len(idle) < ranks <= len(pool.devices):
        return None if job.slot.round else replace(job, devices=())  # begun, and started once so many are idle
    avoided = fleet.avoided(job.slot)
    able = pool.without(job.devices, avoided) or pool.without([] if pool.is_running else idle, avoided)
    if not able:
        return None
    job = _on(job, able[0], idle, min(ranks, len(idle)))
    if job.slot.kind is SlotKind.REFERENCE:
        return job
    return _round(study, fleet, job) if job.slot.round else _probe(study, fleet, job)


def _by_experience(study: Study, devices: Sequence[str]) -> list[str]:
    """These devices, first the one that measured the fastest and the baseline most often.

    Measurements side by side on one device tell most.
    """
    best = leader(study.trials, study.plan.objective)
    pair = {trial.number: trial for trial in (best, *study.trials[:1]) if trial is not None}
    ran = [measured.device for trial in pair.values() for measured in trial.measurements]
    return sorted(devices, key=lambda device: -ran.count(device))


def _out_of_time(study: Study) -> tuple[Slot, StopReason] | None:
    """Slot that was given up as the time was over, and the reason; None if nothing was but losses."""
    given_up = study.ledger.out_of_time.items()
    return next(((slot, why) for slot, why in given_up if slot.kind is not SlotKind.REFERENCE), None)


# Trials --------------------------------------------------------------------------------------------------------


def _on(job: Job, first: str, idle: Sequence[str], ranks: int) -> Job:
    """The job on this device, and as many others as its ranks take."""
    others = [device for device in idle if device != first]
    return replace(job, devices=(first, *others[: ranks - 1]))


def _probe(study: Study, fleet: Fleet, job: Job) -> Job:
    """The probe with its time and the speed that it has to reach; or its answer, if it cannot run."""
    plan, number = study.plan, job.slot.number
    message = "" if job.risk is None else f"may not fit ({job.risk:.0%} likely to)"
    seconds = min(job.seconds, plan.time.cut(math.inf))
    share = fleet.share_reached(study.ledger, plan.objective, job.devices[0])
    why = study.space.baseline_problem if number == 0 else ""
    answer = unsupported(job.configuration, why) if why else _too_few_devices(fleet, job.configuration)
    return replace(job, message=message, seconds=seconds, share=share, answer=answer)


def _too_few_devices(fleet: Fleet, configuration: Configuration) -> Measurement | None:
    """The measurement of ranks that take more devices than there are; None if there are enough."""
    ranks, devices = fleet.pool.devices_needed(configuration), len(fleet.pool.devices)
    why = f"{ranks} ranks take as many devices, and {devices} can be used"
    return unsupported(configuration, why, TOO_FEW_DEVICES) if ranks > devices else None


def _chosen(study: Study, fleet: Fleet, able: Sequence[str]) -> Job | Done | None:
    """The sampler's next measurement, on the first of these devices.

    Or what the answer still lacks; or why there is none. None while something runs that may not fit, and so may the next:
    both would run out of memory.
    """
    ledger, plan, sampler, trials = study.ledger, study.plan, study.sampler, study.trials
    probes_left = plan.probes(trials) - len(trials) - len(ledger.unfinished)
    slot, is_time = Slot(ledger.next_number), not trials or study.time_left() > trials[0].measurement.probe_seconds
    opening = _opening(study, [*ledger.unfinished.values()]) if probes_left > 0 and is_time else None
    if opening is not None:
        return Job(slot, opening, (*able,))
    choice = sampler.choose(trials, _situation(study, fleet, able[0], probes_left))
    knows_gains = isinstance(sampler, PhysicsSampler)
    gap = OptimalityGap(choice.max_gain, choice.max_gain_if_fits, choice.untried) if knows_gains else None
    if choice.configuration is None:
        return _last(study, fleet, able, choice, gap, probes_left)
    if choice.why is Why.NEW:
        may_not_fit = choice.fits < P_FIT_CERTAIN
        if may_not_fit and any(job.may_not_fit for job in fleet.jobs):
            return None
        risk = choice.fits if choice.risky else None
        return Job(slot, choice.configuration, (*able,), risk=risk, may_not_fit=may_not_fit, gap=gap)
    trial = next(trial for trial in trials if trial.configuration == choice.configuration)
    message = MESSAGES[choice.why] if choice.why else ""
    return Job(_next_round(fleet, trial), trial.configuration, (*able,), message=message, gap=gap)


def _situation(study: Study, fleet: Fleet, device: str, probes_left: int) -> Situation:
    ledger, plan, trials = study.ledger, study.plan, study.trials
    running = {JOIN.join(job.devices): job.configuration for job in fleet.jobs if job.slot.kind is SlotKind.TRIAL}
    begun = {str(number): each for number, each in ledger.unfinished.items() if each not in running.values()}
    return Situation(
        running | begun,
        [*ledger.calibrations.values()] if fleet.pool.is_several else (),
        device if fleet.pool.is_several else "",
        study.time_left(),
        {trial.configuration: round_seconds(trial, plan.is_cpu) for trial in trials if trial.feasible},
        0 if plan.no_risk or ledger.unfinished else max(0, RISKS - len(ledger.risks)),
        probes_left,
        plan.confirmation_rounds,
        fleet.effects(ledger),
        ledger.flagged,
    )


def _last(
    study: Study, fleet: Fleet, able: Sequence[str], choice: Choice, gap: OptimalityGap | None, probes_left: int
) -> Job | Done | None:
    """Next job once nothing is worth its seconds: the answer's losses, and it without what may win nothing.

    Done if it lacks nothing; None while something runs.
    """
    plan, trials = study.plan, study.trials
    if fleet.jobs:
        return None
    if simpler := _simpler(study, fleet, able, choice, probes_left):
        return replace(simpler, gap=gap)
    answer = best_trial(trials, plan.objective)  # not the choice's winner if its proof is not worth it
    if compared_with(trials) is None:  # all win by measurements alone
        answer = next((trial for trial in trials if trial.configuration == choice.winner), answer)
    if answer is not None and answer.number and plan.confirmation_rounds:
        if not answer.confirmations and round_seconds(answer, plan.is_cpu) <= study.time_left():
            message = "measured again, to check memory and losses"
            return Job(_next_round(fleet, answer), answer.configuration, (*able,), message=message, gap=gap)
        if (reference := _reference_job(study, able)) is not None:
            return reference
    left_out = (PROBES,) * (choice.end is End.TIME)
    return Done(stop_reason(plan, trials, choice, study.space), left_out, gap)


def _simpler(study: Study, fleet: Fleet, able: Sequence[str], choice: Choice, probes_left: int) -> Job | None:
    """Job of the winner without the changes of the user's settings that seem to win nothing.

    Its probe, or a round if it is measured and its speed-up not shown. None if it has no such changes, or there is no time or
    budget for it.
    """
    sampler, trials = study.sampler, study.trials
    if choice.winner in (None, study.space.baseline) or choice.seconds > study.time_left():
        return None
    if choice.end is End.TIME or not isinstance(sampler, PhysicsSampler) or len(trials) < FIRST_PROBES:
        return None
    simpler = sampler.simpler(trials, choice.winner)
    if (trial := next((trial for trial in trials if trial.configuration == simpler), None)) is None:
        if simpler is None or probes_left <= 0 or choice.end not in (End.GAIN, End.WORTH):
            return None
        return Job(Slot(study.ledger.next_number), simpler, (*able,))
    may_win = trial.feasible and not trial.measurement.ended_early and not trial.disqualified_reason
    is_proof = may_win and not is_shown(trial, compared_with(trials))
    is_left = len(trial.confirmations) < study.plan.confirmation_rounds
    if not (is_proof and is_left and round_seconds(trial, study.plan.is_cpu) <= study.time_left()):
        return None
    message = "measured again, as it changes less"
    return Job(_next_round(fleet, trial), trial.configuration, (*able,), message=message)


def _opening(study: Study, running: Sequence[Configuration]) -> Configuration | None:
    """The configuration to probe before a sampler is asked.

    The baseline; if that does not fit, the least change that may; and for Optuna's samplers other precisions.
    """
    first, *others = openings(study.space)
    if study.trials and (change := _substitute(study, running)) is not None:
        return change
    wanted = [first] if isinstance(study.sampler, PhysicsSampler) else [first, *others]
    left = (each for each in wanted if each not in running and implied_by(each, study.trials) is None)
    return next(left, None)


def _substitute(study: Study, running: Sequence[Configuration]) -> Configuration | None:
    """The least change of a baseline that does not fit which is not probed yet; None if one fits, and after MOST_TRIED."""
    trials, baseline = study.trials, study.space.baseline
    if not trials[0].lacked_memory or substitute(trials) is not None:
        return None
    changes = [*changes_of(study.space)]
    probed = [
        change for change in changes if change in running or any(trial.configuration == change for trial in trials)
    ]
    if len(probed) >= MOST_TRIED or any(change in running for change in probed):
        return None
    estimate, allowed = study.warm_start.estimate, study.plan.allowed_bytes
    open_changes = [change for change in changes if implied_by(change, trials) is None]
    if estimate is None:  # the leanest of those that change as little
        return min(open_changes, key=lambda change: change.micro_batch_size, default=None)
    limit = FITS_BELOW * min(allowed, estimate(baseline))
    likely = (change for change in open_changes if estimate(change) <= limit)
    return next(likely, min(open_changes, key=estimate, default=None))


# Measured again ------------------------------------------------------------------------------------------------


def _next_round(fleet: Fleet, trial: Trial) -> Slot:
    """The slot of a trial's next confirmation round; the first one has the number 1.

    The losses of all first ones are compared.
    """
    taken = {*trial.rounds, *(job.slot.round for job in fleet.jobs if job.slot.number == trial.number)}
    return Slot(trial.number, next(number for number in range(1, len(taken) + 2) if number not in taken))


def _round(study: Study, fleet: Fleet, job: Job) -> Job:
    """The round with its time and how it is measured; or its answer, if it cannot run."""
    trials, number = study.trials, job.slot.round
    trial = next(trial for trial in trials if trial.number == job.slot.number)
    composed = _is_composed(study, trial)
    return replace(
        job,
        whole_speed=_whole_speed(trial, number, JOIN.join(job.devices)) if composed else None,
        seconds=study.plan.time.cut(math.inf),
        answer=needs_too_much(trials, trial) or _too_few_devices(fleet, trial.configuration),
    )


def _is_composed(study: Study, trial: Trial) -> bool:
    """True if long steps of a round run few micro-steps: once the trial, the fastest and the baseline have losses to compare."""
    best = leader(study.trials, study.plan.objective)
    compared = [trial, *study.trials[:1], *([best] if best else [])]
    return all(whole_rounds(each) for each in compared if each.feasible)


def _whole_speed(trial: Trial, round_number: int, device: str) -> Interval | None:
    """The trial's speed on this device in its rounds before this one that ran all micro-steps.

    None if this one is to run them too. Devices of one kind differ by more than a composed step may.
    """
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


# The losses' reference -----------------------------------------------------------------------------------------


def _reference(study: Study) -> Configuration | None:
    """The next training of the losses' reference; None if none is needed or can be had."""
    return next_reference(study.plan, study.trials, study.ledger.references, study.products)


def _reference_job(study: Study, able: Sequence[str]) -> Job | None:
    """The next training of the losses' reference.

    None if its losses are known, not needed or cannot be had, or there is no time for them.
    """
    trials, ledger = study.trials, study.ledger
    reference = _reference(study)
    if reference is None:
        return None
    ran = sorted({number for trial in trials for number in whole_rounds(trial)})
    jobs = (_reference_in(study, able, reference, number) for number in ran)
    if any(slot.kind is SlotKind.REFERENCE for slot in ledger.out_of_time):
        return None
    return next(filter(None, jobs), None)


def _reference_in(study: Study, able: Sequence[str], reference: Configuration, number: int) -> Job | None:
    """The reference's training in this round; None as in `_reference_job`."""
    plan, trials, ledger = study.plan, study.trials, study.ledger
    trained = ledger.references.get(number)
    if trained is not None and trained.asked == reference.values:
        return None
    answer = implied_by(reference, trials)
    job = Job(Slot(0, number, SlotKind.REFERENCE), reference, (*able,))
    if answer is not None and answer.configuration == reference and number in whole_rounds(answer):
        return replace(job, answer=answer.confirmations[answer.rounds.index(number)])
    if not is_wanted(plan, trials, ledger.references, number):
        return None
    if answer is not None and not answer.measurement.feasible:
        return replace(job, answer=answer.measurement)
    if study.reference_seconds() > plan.time.seconds_left():
        return None
    message = f"{NAMES[str(reference.values['precision'])]}'s losses in round {number}"
    return replace(job, message=message, losses=loss_steps(trials, number), seconds=plan.time.cut(math.inf))


def missing_losses(study: Study) -> list[int]:
    """The rounds in which the losses' reference is still to be trained, as there was no time."""
    wanted = bool(study.trials) and _reference(study)
    return sorted(rounds_unreferred(study.trials, study.ledger.references)) if wanted else []


# Devices -------------------------------------------------------------------------------------------------------


def _calibration(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | None:
    """Let an idle device repeat what another one did, if nothing compares them yet and that ends in time."""
    time, repeated = study.plan.time, fleet.calibration_trial(study.ledger)
    if _out_of_time(study) or (repeated and repeated.measurement.probe_seconds > time.seconds_left()):
        return None
    seconds = time.cut(math.inf)
    jobs = (fleet.calibration_job(device, study.ledger, study.space, seconds) for device in idle)
    return next(filter(None, jobs), None)
