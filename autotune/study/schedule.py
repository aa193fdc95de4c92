"""Schedule: what a search does next, as it follows from what is measured and what runs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.core import Configuration, Interval, Measurement, Trial
from autotune.core.measurement import pooled
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot, SlotKind
from autotune.core.stop_reason import StopKind, StopReason
from autotune.executors.pool import JOIN
from autotune.sampler.acquisition import FIRST_PROBES, P_FIT_CERTAIN, RISKS
from autotune.sampler.parameters import openings
from autotune.sampler.physics import DeviceEffects, Expected, PhysicsSampler
from autotune.space.dominance import TOO_FEW_DEVICES, implied_by
from autotune.study.fleet import Fleet
from autotune.study.job import CloseRound, Done, Job, Round, Step, Wait
from autotune.study.measure import needs_too_much, unsupported
from autotune.study.objective import leader
from autotune.study.pacing import can_be_composed, probes_left, reserved_seconds, round_seconds, time_for_a_probe
from autotune.study.race import last_round, next_round, rotated, rounds_to_run
from autotune.study.reference import NAMES, is_wanted, loss_steps, next_reference, rounds_unreferred, whole_rounds
from autotune.study.stopping import nothing_to_win, out_of_budget
from autotune.study.study import Study

PROBES = "further probes"
"""Left out by a search whose time is over before its other budget."""


def next_job(study: Study, fleet: Fleet) -> Step:
    """The next job of the search, or why none begins now.

    First what has begun: rounds, and probes that were interrupted or lost; then a new probe, a new round, and for a device that
    has nothing else to do what others did. On one device a race that has begun goes on before further probes.

    Raises TimeIsOver if there is no time for the baseline.
    """
    pool = fleet.pool
    if study.wish.to_stop and pool.is_running:
        return Wait()
    if (step := _begun_round(study, fleet)) is not None:
        return step
    idle = [device for device in pool.idle if device not in _taken(study)]
    if not pool.is_several and (step := _new_round(study, fleet, idle)) is not None:
        return step
    probe = _next_probe(study, fleet, idle)
    if isinstance(probe, Job):
        return probe
    for step in (
        _planned_round(study, fleet, idle),
        _new_round(study, fleet, idle, is_new=probe is not None and _may_confirm(study, fleet)),
        _late_reference(study, fleet, idle) if probe is not None else None,
        _repetition(study, fleet, idle),
    ):
        if step is not None:
            return step
    return Wait() if probe is None or pool.is_running or not pool.devices else probe


# Probes --------------------------------------------------------------------------------------------------------


def _probing(fleet: Fleet) -> list[Job]:
    """The probes of trials that run."""
    return [job for job in fleet.jobs if job.slot.kind is SlotKind.TRIAL and not job.slot.round]


def _next_probe(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | Done | None:
    """The next probe; Done if there is none any more, and why; None if something else has to end first."""
    ledger, plan, pool = study.ledger, study.plan, fleet.pool
    running = {job.slot.number for job in _probing(fleet)}
    if reason := _out_of_time(study, rounds=False):
        if not ledger.trials and not running:
            raise plan.time.too_late("your own settings were measured")
        return Done(reason, (PROBES,))
    for number, configuration in sorted(ledger.unfinished.items()):
        if number in running:
            continue
        able = pool.but(idle, fleet.avoided(Slot(number)))
        ranks = pool.width(configuration)
        if able and len(idle) < ranks <= len(pool.devices):  # it is next, once so many are idle
            return None
        if able:
            job = Job(Slot(number), configuration, risk=ledger.risks.get(number))
            return _probe(study, fleet, _on(job, able[0], idle, ranks))
    able = [device for device in idle if not fleet.is_suspect(device)]
    if not able and not pool.is_running:  # none of them is above suspicion
        able = [*idle]
    begun = len(ledger.unfinished)
    if not able or (begun and len(ledger.trials) + begun >= plan.probes(ledger.trials)):
        return None
    if begun and not ledger.trials:  # all else follows from the baseline
        return None
    choice = _chosen(study, fleet)
    if not isinstance(choice, Job):
        return choice
    ranks = pool.width(choice.configuration)
    if len(idle) < ranks <= len(pool.devices):
        return choice  # begun, and started once so many are idle
    return _probe(study, fleet, _on(choice, able[0], idle, ranks))


def _on(job: Job, first: str, idle: Sequence[str], ranks: int) -> Job:
    """The job on this device, and as many others as its ranks take."""
    others = [device for device in idle if device != first]
    return replace(job, devices=(first, *others[: ranks - 1]))


def _probe(study: Study, fleet: Fleet, job: Job) -> Job:
    """The probe with its time and the speed that it has to reach; or its answer, if it cannot run."""
    plan, trials, number = study.plan, study.trials, job.slot.number
    message = "" if job.risk is None else f"may not fit ({job.risk:.0%} likely to)"
    seconds = plan.time.cut(math.inf)
    if trials:
        seconds = plan.time.seconds_left() - reserved_seconds(plan, trials, study.reference_seconds())
    share = fleet.share_reached(study.ledger, plan.objective, job.devices[0])
    why = study.space.baseline_problem if number == 0 else ""
    answer = unsupported(job.configuration, why) if why else _too_few_devices(fleet, job.configuration)
    return replace(job, message=message, seconds=seconds, share=share, answer=answer)


def _too_few_devices(fleet: Fleet, configuration: Configuration) -> Measurement | None:
    """The measurement of ranks that take more devices than there are; None if there are enough."""
    ranks, devices = fleet.pool.width(configuration), len(fleet.pool.devices)
    why = f"{ranks} ranks take as many devices, and {devices} can be used"
    return unsupported(configuration, why, TOO_FEW_DEVICES) if ranks > devices else None


def _chosen(study: Study, fleet: Fleet) -> Job | Done | None:
    """The sampler's next probe that nothing answers for yet, or why there is none; None while one runs that may not fit, and so
    may the next: both would run out of memory.
    """
    ledger, plan, space, trials = study.ledger, study.plan, study.space, study.trials
    running = [*ledger.unfinished.values()]
    slot, sampler = Slot(ledger.next_number), study.sampler
    out_of_time = bool(trials) and not time_for_a_probe(plan, trials, study.reference_seconds())
    over = out_of_budget(plan, trials, out_of_time)
    opening = None if over else _opening(study, running)
    if opening is not None:
        return Job(slot, opening)
    if over and not isinstance(sampler, PhysicsSampler):
        return Done(over, (PROBES,) * out_of_time)
    effects = fleet.effects(ledger)
    if not isinstance(sampler, PhysicsSampler):
        choice = sampler.propose(trials, running, effects)
        if choice.configuration is None:
            return Done(StopReason(StopKind.ALL_TESTED, choice.reason))
        return Job(slot, choice.configuration)
    risks = 0 if plan.no_risk or running else max(0, RISKS - len(ledger.risks))
    choice = sampler.propose(trials, running, effects, risks, probes_left(plan, trials, study.reference_seconds()))
    gap = OptimalityGap(choice.max_gain, choice.max_gain_if_fits, choice.untried)
    if reason := nothing_to_win(plan, trials, choice, space.size):
        simpler = None if over else _simpler(study, sampler, effects)
        return Job(slot, simpler, gap=gap) if simpler else Done(reason, gap=gap)
    if over:
        return Done(over, (PROBES,) * out_of_time, gap)
    assert choice.configuration is not None
    may_not_fit = choice.fits < P_FIT_CERTAIN
    if may_not_fit and any(job.may_not_fit for job in fleet.jobs):
        return None
    risk = choice.fits if choice.risky else None
    return Job(slot, choice.configuration, risk=risk, may_not_fit=may_not_fit, gap=gap)


def _simpler(study: Study, sampler: PhysicsSampler, effects: DeviceEffects) -> Configuration | None:
    """The fastest configuration so far without the changes of the user's settings that seem to win nothing; None if it has none,
    or that is measured or running."""
    best = leader(study.trials, study.plan.objective)
    if best is None or not best.number or len(study.trials) < FIRST_PROBES or study.plan.minimizes:
        return None
    simpler = sampler.simpler(study.trials, best.configuration, effects)
    return None if simpler in study.ledger.unfinished.values() else simpler


def _opening(study: Study, running: Sequence[Configuration]) -> Configuration | None:
    """The configuration to probe before a sampler is asked: the baseline, and for Optuna's samplers other precisions."""
    first, *others = openings(study.space)
    wanted = [first] if isinstance(study.sampler, PhysicsSampler) else [first, *others]
    left = (each for each in wanted if each not in running and implied_by(each, study.trials) is None)
    return next(left, None)


# Rounds --------------------------------------------------------------------------------------------------------


def _taken(study: Study) -> set[str]:
    """Devices of rounds that go on there."""
    if _out_of_time(study, rounds=True):
        return set()
    return {device for round_ in study.ledger.rounds.values() for device in round_.devices}


def _out_of_time(study: Study, *, rounds: bool) -> StopReason | None:
    """The reason for which a probe, or a round, was given up: the time was over; None if none was."""
    reasons = study.ledger.out_of_time.items()
    of_kind = (why for slot, why in reasons if slot.kind is not SlotKind.REFERENCE and bool(slot.round) is rounds)
    return next(of_kind, None)


def _begun_round(study: Study, fleet: Fleet) -> Job | CloseRound | None:
    """The next step of a round whose devices are idle; None if there is none."""
    pool = fleet.pool
    for round_ in study.ledger.rounds.values():
        devices = {*round_.devices}
        if devices - pool.probes.keys():  # of an earlier run on other devices
            return CloseRound(round_)
        if pool.left_out.keys() & devices and not any(map(pool.runs_on, devices)):
            return CloseRound(round_, is_lost=True)
        if devices and devices <= {*pool.idle} and not _out_of_time(study, rounds=True):
            return _next_in_round(study, fleet, round_)
    return None


def _planned_round(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | CloseRound | None:
    """The beginning of a round that is planned, on free devices; None if there is none."""
    for round_ in study.ledger.rounds.values():
        if not round_.devices and not _out_of_time(study, rounds=True):
            return _begin(study, fleet, idle, [round_])
    return None


def _may_confirm(study: Study, fleet: Fleet) -> bool:
    """True if a race may begin, now that nothing is left to win unless what runs does better than expected.

    Meanwhile the best so far is confirmed once there are idle devices for all rounds that it needs, and no more than half of
    them all probe: earlier or with fewer took longer in the replay (reports/executors.md).
    """
    pool, probing = fleet.pool, _probing(fleet)
    most = min(study.plan.confirmation_rounds, len(pool.devices) - 1)
    return not probing or (2 * len(probing) <= len(pool.devices) and 2 <= most <= len(pool.idle))


def _new_round(study: Study, fleet: Fleet, idle: Sequence[str], is_new: bool = False) -> Job | CloseRound | None:
    """The beginning of the next rounds: one, or on several devices those that are needed, side by side; None if no round
    is to be run. is_new: whether another race may begin."""
    ledger, plan, trials = study.ledger, study.plan, study.trials
    last = last_round(trials)
    if ledger.rounds or not trials or _out_of_time(study, rounds=True) or not (last or is_new):
        return None
    numbers = next_round(trials, plan, _expected(study, fleet), study.reference_seconds(), is_new)
    if not numbers:
        return None
    count = 1
    if fleet.pool.is_several:
        racing = [trial for trial in trials if trial.number in numbers]
        count = max(1, min(len(fleet.pool.devices), rounds_to_run(racing, plan.confirmation_rounds)))
    planned = [Round(number, tuple(rotated(numbers, number - 1))) for number in range(last + 1, last + 1 + count)]
    return _begin(study, fleet, idle, planned)


def _begin(study: Study, fleet: Fleet, idle: Sequence[str], planned: Sequence[Round]) -> Job | CloseRound | None:
    """The first job of the first of these rounds, on idle devices; None if there are too few."""
    pool, first = fleet.pool, planned[0]
    configurations = [study.ledger.configuration(number) for number in first.trials]
    if not configurations and (reference := _reference(study)):
        configurations = [reference]
    width = min(max(1, len(pool.devices)), max(map(pool.width, configurations), default=1))
    avoided = fleet.for_round(first.number)
    free = pool.but(idle, avoided) if width == 1 else sorted(idle, key=lambda device: device == avoided)
    if len(free) < width:
        return None
    begun = replace(first, devices=tuple(free[:width]), composed=_is_composed(study, first))
    step = _next_in_round(study, fleet, begun)
    return replace(step, rounds=(begun, *planned[1:])) if isinstance(step, Job) else step


def _next_in_round(study: Study, fleet: Fleet, round_: Round) -> Job | CloseRound:
    """The next measurement of this round on its devices, or its end."""
    plan, trials, pool = study.plan, study.trials, fleet.pool
    for place, number in enumerate(round_.trials, 1):
        trial = next((trial for trial in trials if trial.number == number), None)
        if trial is None or round_.number in trial.rounds:
            continue
        most = plan.confirmation_rounds
        message = (
            f"round {round_.number}{f' of {most}' if round_.number <= most else ''}, {place} of {len(round_.trials)}"
        )
        devices = round_.devices[: pool.width(trial.configuration)]
        return Job(
            Slot(number, round_.number),
            trial.configuration,
            devices,
            message=message,
            whole_speed=_whole_speed(trial, round_.number, JOIN.join(devices)) if round_.composed else None,
            seconds=plan.time.cut(math.inf),
            answer=needs_too_much(trials, trial) or _too_few_devices(fleet, trial.configuration),
        )
    return _reference_job(study, fleet, round_) or CloseRound(round_)


def _is_composed(study: Study, round_: Round) -> bool:
    """True if long steps of this round run few micro-steps: not if a trial runs its first round, whose losses are compared."""
    racing = [trial for trial in study.trials if trial.number in round_.trials]
    return all(any(number < round_.number for number in whole_rounds(trial)) for trial in racing)


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


def _expected(study: Study, fleet: Fleet) -> Expected | None:
    sampler = study.sampler
    if not isinstance(sampler, PhysicsSampler) or study.plan.objective != "samples_per_second":
        return None
    return sampler.expected(study.trials, fleet.effects(study.ledger))


# The losses' reference -----------------------------------------------------------------------------------------


def _reference(study: Study) -> Configuration | None:
    """The next training of the losses' reference; None if none is needed or can be had."""
    return next_reference(study.plan, study.trials, study.ledger.references, study.products)


def _reference_job(study: Study, fleet: Fleet, round_: Round) -> Job | None:
    """The next training of the losses' reference in this round; None if its losses are known, not needed or cannot be had, or
    there is no time for them."""
    plan, trials, ledger = study.plan, study.trials, study.ledger
    slot, reference = Slot(0, round_.number, SlotKind.REFERENCE), _reference(study)
    if reference is None or slot in ledger.out_of_time:
        return None
    if any(job.slot.kind is SlotKind.REFERENCE for job in fleet.jobs):
        return None
    trained = ledger.references.get(round_.number)
    if trained is not None and trained.asked == reference.values:
        return None
    answer = implied_by(reference, trials)
    job = Job(slot, reference, round_.devices[: fleet.pool.width(reference)])
    if answer is not None and answer.configuration == reference and round_.number in whole_rounds(answer):
        return replace(job, answer=answer.confirmations[answer.rounds.index(round_.number)])
    if not is_wanted(plan, trials, ledger.references, round_.number):
        return None
    if answer is not None and not answer.measurement.feasible:
        return replace(job, answer=answer.measurement)
    is_needed = round_.number in rounds_unreferred(trials, ledger.references)
    others = [] if is_needed else [trial for trial in trials if trial.number in round_.trials]
    further_s = sum(round_seconds(trial, plan.is_cpu) for trial in others)
    if study.reference_seconds() + further_s > plan.time.seconds_left():
        return None
    message = f"{NAMES[str(reference.values['precision'])]}'s losses in round {round_.number}"
    steps = loss_steps(trials, round_.number)
    return replace(job, message=message, losses=steps, seconds=plan.time.cut(math.inf))


def missing_losses(study: Study) -> list[int]:
    """The rounds in which the losses' reference is still to be trained, as there was no time."""
    wanted = bool(study.trials) and _reference(study)
    return sorted(rounds_unreferred(study.trials, study.ledger.references)) if wanted else []


def _late_reference(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | None:
    """The losses' reference in a round that has ended without it; None if no round lacks it, or there is no time."""
    if study.ledger.rounds or _out_of_time(study, rounds=True):
        return None
    for number in missing_losses(study):
        step = _begin(study, fleet, idle, [Round(number)])
        if isinstance(step, Job):
            return step
    return None


# Devices -------------------------------------------------------------------------------------------------------


def _repetition(study: Study, fleet: Fleet, idle: Sequence[str]) -> Job | None:
    """Let an idle device repeat what another one did, if nothing compares them yet."""
    if _out_of_time(study, rounds=False):
        return None
    seconds = study.plan.time.cut(math.inf)
    jobs = (fleet.repetition(device, study.ledger, study.space, seconds) for device in idle)
    return next(filter(None, jobs), None)
