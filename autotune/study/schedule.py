"""Schedule: what a search does next, as it follows from what is measured and what runs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.core import Configuration, Interval, Measurement, Trial
from autotune.core.measurement import JOIN, pooled
from autotune.core.prospect import OptimalityGap
from autotune.core.slot import Slot, SlotKind
from autotune.judge.claim import COMPARISONS
from autotune.judge.constants import LOOKS, MOST_TRIED
from autotune.judge.dominance import TOO_FEW_DEVICES, implied_by
from autotune.judge.substitute import changes_of
from autotune.sampler.constants import FIRST_PROBES, P_FIT_CERTAIN, RISKS
from autotune.sampler.parameters import openings
from autotune.sampler.physics import PhysicsSampler
from autotune.sampler.policy import Choice, End, Why
from autotune.sampler.situation import Situation
from autotune.study.fleet import Fleet
from autotune.study.job import Begin, Done, Known, NextStep, Run, Wait
from autotune.study.measure import needs_too_much, unsupported
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


@dataclass(frozen=True)
class Turn:
    """State that the rules look at: the study, its devices, and what the sampler chooses now."""

    study: Study
    fleet: Fleet

    @cached_property
    def idle(self) -> list[str]:
        """Devices that measure nothing."""
        return [*self.fleet.pool.idle]

    @cached_property
    def able(self) -> list[str]:
        """Idle devices that may get something new: the one that measured the fastest and the baseline most often first.

        Measurements side by side on one device tell most. Suspected ones only if no other runs.
        """
        able = [device for device in self.idle if not self.fleet.is_suspect(device)]
        if not able and not self.fleet.pool.is_running:
            able = self.idle
        best = self.study.standing.leader
        pair = {trial.number: trial for trial in (best, *self.study.trials[:1]) if trial is not None}
        ran = [measured.device for trial in pair.values() for measured in trial.measurements]
        return sorted(able, key=lambda device: -ran.count(device))

    @cached_property
    def probes_left(self) -> int:
        """Configurations that may still be tried."""
        study = self.study
        return study.plan.probes(study.trials) - len(study.trials) - len(study.ledger.unfinished)

    @cached_property
    def choice(self) -> Choice:
        """The sampler's."""
        return self.study.sampler.choose(
            self.study.standing, _situation(self.study, self.fleet, self.able[0], self.probes_left)
        )

    @cached_property
    def gap(self) -> OptimalityGap | None:
        """Bounds of what the untried can still win, of a sampler that knows them; else None."""
        choice, knows = self.choice, isinstance(self.study.sampler, PhysicsSampler)
        return OptimalityGap(choice.max_gain, choice.max_gain_if_fits, choice.untried) if knows else None

    def again(self, trial: Trial, message: str, of_pair: bool = False) -> Run:
        """A further round of this trial, in the pair that is open or in a new one (judge/claim.py), or a comparison."""
        taken = [number for each in self.study.trials for number in each.rounds]
        taken += [job.slot.round for job in self.fleet.jobs]
        least = 0 if of_pair else COMPARISONS
        new = 1 + max((number for number in taken if (number <= COMPARISONS) == of_pair), default=least)
        number = self.choice.round if of_pair and self.choice.round else new
        return Run(Slot(trial.number, number), trial.configuration, gap=self.gap, message=message)

    def new(self, configuration: Configuration, **facts: Any) -> Run:
        """A new trial."""
        return Run(Slot(self.study.ledger.next_number), configuration, **facts)


Rule = Callable[[Turn], NextStep | None]
"""The next step if the rule has one, without devices; else None: the next rule is asked."""


def next_job(study: Study, fleet: Fleet, rules: Sequence[Rule] = ()) -> NextStep:
    """The next step of the search: that of the first rule that has one. rules: RULES by default.

    Raises TimeIsOver if there is no time for the baseline.
    """
    turn, pool = Turn(study, fleet), fleet.pool
    if study.stop_request.to_stop and pool.is_running:
        return Wait()
    step = next(step for rule in rules or RULES if (step := rule(turn)) is not None)
    if isinstance(step, Run):
        step = _placed(turn, step)
    if not isinstance(step, Wait | Done):
        return step
    return calibrate(turn) or (Wait() if pool.is_running or not pool.devices else step)


# The rules ------------------------------------------------------------------------------------------------------


def out_of_time(turn: Turn) -> Done | None:
    """The end of a search that gave up a measurement, other than of losses, as the time was over."""
    ledger, plan = turn.study.ledger, turn.study.plan
    given_up = [(slot, why) for slot, why in ledger.out_of_time.items() if slot.kind is not SlotKind.REFERENCE]
    if not given_up:
        return None
    if not ledger.trials and not turn.fleet.begun:
        raise plan.time.too_late("your own settings were measured")
    slot, reason = given_up[0]
    return Done(reason, (PROBES,) * (not slot.round))


def finish_begun(turn: Turn) -> Run | Wait | None:
    """A trial that was begun and has no measurement, on a device that may run it."""
    ledger, fleet, pool = turn.study.ledger, turn.fleet, turn.fleet.pool
    for number, configuration in sorted(ledger.unfinished.items()):
        if number in fleet.begun:
            continue
        able = pool.without(turn.idle, fleet.avoided(Slot(number)))
        if able and len(turn.idle) < pool.devices_needed(configuration) <= len(pool.devices):
            return Wait()  # it is next, once so many are idle
        if able:
            return Run(Slot(number), configuration, risk=ledger.risks.get(number), devices=(able[0],))
    # All else follows from the baseline.
    return Wait() if not turn.able or (ledger.unfinished and not ledger.trials) else None


def baseline(turn: Turn) -> Run | None:
    """The baseline, with which all is compared."""
    return None if turn.study.trials or not _is_time_for_a_trial(turn) else turn.new(turn.study.space.baseline)


def substitute(turn: Turn) -> Run | None:
    """The least change of a baseline that does not fit, until one fits."""
    change = _substitute(turn.study, [*turn.study.ledger.unfinished.values()]) if _is_time_for_a_trial(turn) else None
    return None if change is None else turn.new(change)


def precisions(turn: Turn) -> Run | None:
    """The baseline in other precisions, before one of Optuna's samplers is asked."""
    study = turn.study
    if isinstance(study.sampler, PhysicsSampler) or not _is_time_for_a_trial(turn):
        return None
    begun = study.ledger.unfinished.values()
    left = (each for each in openings(study.space) if each not in begun and implied_by(each, study.trials) is None)
    return next(map(turn.new, left), None)


def simplify(turn: Turn) -> Run | None:
    """The winner without the changes of the user's settings that seem to win nothing, before it is proven.

    None if it has no such changes or they are measured, and without time or budget for it.
    """
    study, choice, sampler = turn.study, turn.choice, turn.study.sampler
    is_chosen = choice.why is Why.PROVE or (
        choice.configuration is None and choice.end in (End.GAIN, End.WORTH, End.DRY)
    )
    if not is_chosen or choice.winner in (None, study.space.baseline) or not isinstance(sampler, PhysicsSampler):
        return None
    if turn.probes_left <= 0 or len(study.trials) < FIRST_PROBES or choice.seconds > study.time_left():
        return None
    simpler = sampler.simpler(study.standing, choice.winner)
    is_known = simpler in study.ledger.unfinished.values() or any(t.configuration == simpler for t in study.trials)
    return None if simpler is None or is_known else turn.new(simpler, gap=turn.gap)


def sampled(turn: Turn) -> Run | Wait | None:
    """The sampler's next measurement.

    Nothing begins while something runs that may not fit, and so may the next: both would run out of memory.
    """
    choice = turn.choice
    if choice.configuration is None:
        return Wait() if turn.fleet.jobs else None
    if choice.why is Why.NEW:
        may_not_fit = choice.fits < P_FIT_CERTAIN
        if may_not_fit and any(job.may_not_fit for job in turn.fleet.jobs):
            return Wait()
        risk = choice.fits if choice.risky else None
        return turn.new(choice.configuration, risk=risk, may_not_fit=may_not_fit, gap=turn.gap)
    trial = next(trial for trial in turn.study.trials if trial.configuration == choice.configuration)
    return turn.again(trial, MESSAGES[choice.why] if choice.why else "", of_pair=choice.why is Why.PROVE)


def check_answer(turn: Turn) -> Run | None:
    """A round of an answer without any, which shows its losses and whether it fits for longer."""
    plan, answer = turn.study.plan, _answer(turn)
    if answer is None or not answer.number or not plan.confirmation_rounds or answer.confirmations:
        return None
    is_time = round_seconds(answer, plan.is_cpu) <= turn.study.time_left()
    return turn.again(answer, "measured again, to check memory and losses") if is_time else None


def losses(turn: Turn) -> Run | Known | None:
    """The next training of the losses' reference, for an answer that changes something."""
    answer, plan = _answer(turn), turn.study.plan
    is_wanted = answer is not None and answer.number and plan.confirmation_rounds
    return _reference_step(turn.study) if is_wanted else None


def end(turn: Turn) -> Done:
    """The end, and why."""
    study, choice = turn.study, turn.choice
    reason = stop_reason(study.plan, study.standing, choice, study.space)
    return Done(reason, (PROBES,) * (choice.end is End.TIME), turn.gap)


RULES: tuple[Rule, ...] = (
    out_of_time,
    finish_begun,
    baseline,
    substitute,
    precisions,
    simplify,
    sampled,
    check_answer,
    losses,
    end,
)
"""Rules in the order in which they are asked. A device that then has nothing to do may `calibrate`."""


def calibrate(turn: Turn) -> Run | None:
    """An idle device repeats what another one did, if nothing compares them yet and that ends in time."""
    study, fleet, time = turn.study, turn.fleet, turn.study.plan.time
    repeated = fleet.calibration_trial(study.ledger)
    given_up = any(slot.kind is not SlotKind.REFERENCE for slot in study.ledger.out_of_time)
    if given_up or (repeated and repeated.measurement.probe_seconds > time.seconds_left()):
        return None
    seconds = time.cut(math.inf)
    jobs = (fleet.calibration_job(device, study.ledger, study.space, seconds) for device in turn.idle)
    return next(filter(None, jobs), None)


# What they share ------------------------------------------------------------------------------------------------


def _is_time_for_a_trial(turn: Turn) -> bool:
    """True if another configuration may be tried, and one as long as the baseline's is expected to end in time."""
    trials = turn.study.trials
    is_time = not trials or turn.study.time_left() > trials[0].measurement.probe_seconds
    return turn.probes_left > 0 and is_time


def _answer(turn: Turn) -> Trial | None:
    """The answer, not the choice's winner if its proof is not worth it."""
    standing = turn.study.standing
    if standing.compared is None:  # all win by measurements alone
        return next((each for each in standing.trials if each.configuration == turn.choice.winner), standing.answer)
    return standing.answer


def _placed(turn: Turn, run: Run) -> NextStep:
    """The run with its devices, its time and how it is measured; else it is begun, known, or has to wait."""
    study, fleet, pool, slot = turn.study, turn.fleet, turn.fleet.pool, run.slot
    ranks = pool.devices_needed(run.configuration)
    if not run.devices:
        if len(turn.idle) < ranks <= len(pool.devices):  # it starts once so many are idle
            is_round = slot.round or slot.kind is SlotKind.REFERENCE
            return Wait() if is_round else Begin(slot, run.configuration, run.risk, run.gap)
        avoided = fleet.avoided(slot)
        able = pool.without(turn.able, avoided) or pool.without([] if pool.is_running else turn.idle, avoided)
        if not able:
            return Wait()
        run = replace(run, devices=(able[0],))
    (first,) = run.devices
    others = [device for device in turn.idle if device != first]
    run = replace(run, devices=(first, *others[: ranks - 1]), seconds=study.plan.time.cut(math.inf))
    if slot.kind is SlotKind.REFERENCE:
        return run
    return _round(study, fleet, run) if slot.round else _probe(study, fleet, run)


def _probe(study: Study, fleet: Fleet, run: Run) -> Run | Known:
    """The probe with the speed that it has to reach; or its measurement, if it cannot run."""
    why = study.space.baseline_problem if run.slot.number == 0 else ""
    known = unsupported(run.configuration, why) if why else _too_few_devices(fleet, run.configuration)
    if known is not None:
        return Known(run.slot, run.configuration, run.risk, run.gap, measurement=known)
    message = "" if run.risk is None else f"may not fit ({run.risk:.0%} likely to)"
    return replace(run, message=message, share=fleet.share_reached(study.ledger, run.devices[0]))


def _too_few_devices(fleet: Fleet, configuration: Configuration) -> Measurement | None:
    """The measurement of ranks that take more devices than there are; None if there are enough."""
    ranks, devices = fleet.pool.devices_needed(configuration), len(fleet.pool.devices)
    why = f"{ranks} ranks take as many devices, and {devices} can be used"
    return unsupported(configuration, why, TOO_FEW_DEVICES) if ranks > devices else None


def _situation(study: Study, fleet: Fleet, device: str, probes_left: int) -> Situation:
    ledger, plan, trials = study.ledger, study.plan, study.trials
    running = {JOIN.join(job.devices): job.configuration for job in fleet.jobs if job.slot.kind is SlotKind.TRIAL}
    begun = {str(number): each for number, each in ledger.unfinished.items() if each not in running.values()}
    return Situation(
        running=running | begun,
        calibrations=[*ledger.calibrations.values()] if fleet.pool.is_several else (),
        device=device if fleet.pool.is_several else "",
        seconds_left=study.time_left(),
        repeat_seconds={trial.configuration: round_seconds(trial, plan.is_cpu) for trial in trials if trial.feasible},
        risks=0 if plan.no_risk or ledger.unfinished else max(0, RISKS - len(ledger.risks)),
        probes_left=probes_left,
        min_repeats=min(plan.confirmation_rounds, max(LOOKS)),
        effects=fleet.effects(ledger),
        flagged=ledger.flagged,
    )


def _substitute(study: Study, running: Sequence[Configuration]) -> Configuration | None:
    """The least change of a baseline that does not fit which is not probed yet; None if one fits, and after MOST_TRIED."""
    trials, baseline = study.trials, study.space.baseline
    if not trials[0].lacked_memory or study.standing.substitute is not None:
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


def _round(study: Study, fleet: Fleet, run: Run) -> Run | Known:
    """The round, and how it is measured; or its measurement, if it cannot run."""
    trial = next(trial for trial in study.trials if trial.number == run.slot.number)
    known = needs_too_much(study.trials, trial) or _too_few_devices(fleet, trial.configuration)
    if known is not None:
        return Known(run.slot, run.configuration, run.risk, run.gap, measurement=known)
    speed = _whole_speed(trial, run.slot.round, JOIN.join(run.devices)) if _is_composed(study, trial) else None
    return replace(run, whole_speed=speed)


def _is_composed(study: Study, trial: Trial) -> bool:
    """True if long steps of a round run few micro-steps: once the trial, the fastest and the baseline have losses to compare."""
    best = study.standing.leader
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
    return next_reference(study.plan, study.standing, study.ledger.references, study.products)


def _reference_step(study: Study) -> Run | Known | None:
    """The next training of the losses' reference.

    None if its losses are known, not needed or cannot be had, or there is no time for them.
    """
    reference = _reference(study)
    if reference is None or any(slot.kind is SlotKind.REFERENCE for slot in study.ledger.out_of_time):
        return None
    ran = sorted({number for trial in study.trials for number in whole_rounds(trial)})
    steps: Iterator[Run | Known | None] = (_reference_in(study, reference, number) for number in ran)
    return next((step for step in steps if step is not None), None)


def _reference_in(study: Study, reference: Configuration, number: int) -> Run | Known | None:
    """The reference's training in this round; None as in `_reference_step`."""
    plan, trials, ledger = study.plan, study.trials, study.ledger
    trained = ledger.references.get(number)
    if trained is not None and trained.asked == reference.values:
        return None
    answer, slot = implied_by(reference, trials), Slot(0, number, SlotKind.REFERENCE)
    if answer is not None and answer.configuration == reference and number in whole_rounds(answer):
        return Known(slot, reference, measurement=answer.confirmations[answer.rounds.index(number)])
    if not is_wanted(plan, study.standing, ledger.references, number):
        return None
    if answer is not None and not answer.measurement.feasible:
        return Known(slot, reference, measurement=answer.measurement)
    if study.reference_seconds() > plan.time.seconds_left():
        return None
    message = f"{NAMES[str(reference.values['precision'])]}'s losses in round {number}"
    return Run(slot, reference, message=message, losses=loss_steps(trials, number))


def missing_losses(study: Study) -> list[int]:
    """The rounds in which the losses' reference is still to be trained, as there was no time."""
    wanted = bool(study.trials) and _reference(study)
    return sorted(rounds_unreferred(study.trials, study.ledger.references)) if wanted else []
