"""How a search shares out its time: what a round, the sanity check and another probe are expected to take."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from autotune.core import Measurement, Trial
from autotune.probe.order import timings
from autotune.probe.train.adaptive import HOPELESS_LEAST
from autotune.study.finalists import FINALISTS, finalists
from autotune.study.objective import best_trial
from autotune.study.plan import Plan

LEAST_RIVALS = 2
"""Finalists that are confirmed together at the least where there is time: one by itself may have had a lucky probe."""

RESERVED = 0.4
"""Share of a limited time that is left to rounds and checks at the most, beyond one round."""

LONG_STEP_S = 2.0
"""Seconds of a step, all its micro-steps together, from which on rounds after a trial's first run few of them. A round has seven
steps at the least, and on a GPU eight seconds: below this nothing much is saved, from here on it is half a round and more."""

CHECKED_STEPS = 10
"""Steps that the sanity check is expected to take at the most, its evaluation and checkpoint counted as some."""


def time_for_a_probe(plan: Plan, trials: Sequence[Trial], reference_s: float = 0.0) -> bool:
    """Whether another probe is expected to end in time, and to leave enough for confirming the answer.

    An answer for which not even one round has time left keeps no probe from being tried. reference_s: of the losses' reference.
    """
    if not plan.time.is_set or not trials:
        return not plan.time.is_over
    left = plan.time.seconds_left()
    probe_s = max(trial.measurement.probe_seconds for trial in trials[-2:])
    return left - probe_s >= reserved_seconds(plan, trials, reference_s)


def probes_left(plan: Plan, trials: Sequence[Trial], reference_s: float = 0.0) -> float:
    """Number of further probes within the budget and the time, each as long as the longest of the last two."""
    budget = plan.probes(trials) - len(trials)
    if not plan.time.is_set or not trials:
        return budget
    probe_s = max(trial.measurement.probe_seconds for trial in trials[-2:])
    left = plan.time.seconds_left() - reserved_seconds(plan, trials, reference_s)
    return min(budget, max(0.0, left // probe_s)) if probe_s else budget


def reserved_seconds(plan: Plan, trials: Sequence[Trial], reference_s: float = 0.0) -> float:
    """Seconds that probes leave for the best trials and the baseline: of one round, or of all that follows.

    All that follows is given no more than a share of the time (RESERVED). 0 without a limit, where there is nothing yet to
    compare with the baseline, and where not even one round has time left. reference_s: of the losses' reference, which belongs
    to a round while it has time.
    """
    if not plan.time.is_set or not any(trial.number for trial in finalists(trials, plan.objective)):
        return 0.0
    rivals, baseline = _racing(plan, trials)
    left = plan.time.seconds_left()
    least = rounds_seconds([*rivals[:1], *baseline], 1, plan.is_cpu)
    if least > left:
        return 0.0
    reference_s = reference_s if least + reference_s <= left else 0.0
    one_round = rounds_seconds([*rivals, *baseline], 1, plan.is_cpu) + reference_s
    all_rounds = rounds_seconds([*rivals, *baseline], plan.confirmation_rounds, plan.is_cpu) + reference_s
    wanted = all_rounds + finishing_seconds(trials, plan.objective)
    return max(one_round, min(wanted, RESERVED * (plan.time.seconds or 0.0)))


def _racing(plan: Plan, trials: Sequence[Trial], most: int = LEAST_RIVALS) -> tuple[list[Trial], list[Trial]]:
    """(the baseline's rivals among the first `most` finalists, the baseline if it runs)."""
    baseline = [trial for trial in trials[:1] if trial.feasible]
    rivals = [trial for trial in finalists(trials, plan.objective)[:most] if trial.number]
    return rivals or baseline, baseline  # a rival that is still to come takes as long


def rounds_seconds(trials: Iterable[Trial], rounds: int, is_cpu: bool) -> float:
    """Seconds until each of these is expected to have this number of rounds, run together."""
    trials = [*trials]
    whole = _is_whole(trials)

    def seconds(trial: Trial) -> float:
        missing = rounds - len(trial.confirmations)
        if missing <= 0:
            return 0.0
        first = round_seconds(trial, is_cpu, whole)
        return first + (missing - 1) * (_foreseen_s(trial, True, is_cpu) if can_be_composed(trial) else first)

    return sum(map(seconds, trials))


def one_round_seconds(trials: Sequence[Trial], is_cpu: bool) -> float:
    """Seconds that one more round of all of these is expected to take."""
    whole = _is_whole(trials)
    return sum(round_seconds(trial, is_cpu, whole) for trial in trials)


def _is_whole(trials: Sequence[Trial]) -> bool:
    """True if all of these run all micro-steps in their next round, as one of them has run none."""
    return not all(trial.confirmations for trial in trials)


def round_seconds(trial: Trial, is_cpu: bool, whole: bool = False) -> float:
    """Seconds that its next round is expected to take: as its last one of that kind, else by its probe. whole: it runs all
    micro-steps, whatever it ran before."""
    return _foreseen_s(trial, not whole and bool(trial.confirmations) and can_be_composed(trial), is_cpu)


def can_be_composed(trial: Trial) -> bool:
    """True if rounds of this trial after its first one need not run all micro-steps of its long step, but few as its probe did.

    Not if batches differ, of which few do not represent many, and not where that was tried in a round and failed.
    """
    probe = trial.measurement
    is_long = (probe.step_time_s or 0.0) >= LONG_STEP_S and probe.is_composed and not probe.worst_batch
    return is_long and not any(measured.whole_because for measured in trial.confirmations)


def _foreseen_s(trial: Trial, composed: bool, is_cpu: bool) -> float:
    """Seconds of one round of this kind: as the last one took; else the seconds of its probe outside its steps, and as many
    steps as a round has."""
    probe = trial.measurement
    for measured in reversed(trial.confirmations):
        if measured.is_composed == composed:
            return measured.probe_seconds
    step_s = probe.step_time_s or 0.0
    if composed:
        step_s = fmean(step.seconds for step in probe.steps)
    timing = timings(is_cpu)[1]
    untimed_s = max(timing.untimed_most * step_s, timing.untimed_seconds)
    timed_s = max(HOPELESS_LEAST * step_s, min(timing.timed_most * step_s, timing.seconds), timing.timed_seconds_least)
    return starting_seconds(probe) + untimed_s + timed_s


def starting_seconds(measurement: Measurement) -> float:
    """The seconds of a probe that are none of its steps': its start and end, the model, the data."""
    times = [step.seconds for step in measurement.steps]
    in_steps = sum(times) * (1 + measurement.untimed_steps / len(times)) if times else 0.0
    return max(0.0, measurement.probe_seconds - in_steps)


def seconds_to_go(
    plan: Plan,
    trials: Sequence[Trial],
    searching: bool,
    racing: Sequence[int] = (),
    pace: Sequence[tuple[float, float]] = (),
    reference_s: float = 0.0,
) -> float | None:
    """How long the search is expected to take still; before the first trial its time limit, None without one.

    searching: with all the probes and rounds that are left; else the sanity check alone. racing: the trials of the round that
    runs, of which few are expected to run those after it. pace: seconds that measurements took on the clock, and those of
    their probes alone: where the machine is disturbed they are repeated. reference_s: of the losses' reference in all rounds
    to come.
    """
    if not trials:
        return plan.time.seconds_left() if plan.time.is_set else None
    seconds = finishing_seconds(trials, plan.objective)
    if racing:
        seconds += _race_seconds(plan, [trial for trial in trials if trial.number in racing]) + reference_s
    elif searching:
        others = [trial.measurement.probe_seconds for trial in trials[1:]] or [trials[0].measurement.probe_seconds]
        seconds += max(0, plan.probes(trials) - len(trials)) * fmean(others)
        rivals, baseline = _racing(plan, trials, FINALISTS)
        group = [*baseline, *rivals]
        if any(len(trial.confirmations) < plan.confirmation_rounds for trial in group):
            seconds += _race_seconds(plan, group) + reference_s
            missing = max(0, min(FINALISTS, plan.n_trials - 1) - len(rivals))  # finalists that are still to come
            if not any(trial.confirmations for trial in trials):
                seconds += missing * fmean(round_seconds(trial, plan.is_cpu) for trial in group)
    on_the_clock, alone = (sum(column) for column in zip(*pace, strict=True)) if pace else (1.0, 1.0)
    return min(seconds * (on_the_clock / alone if alone else 1.0), plan.time.seconds_left())


def rounds_left(plan: Plan, trials: Sequence[Trial]) -> int:
    """Rounds that are expected to be run still."""
    return max(0, plan.confirmation_rounds - max((len(trial.confirmations) for trial in trials), default=0))


def _race_seconds(plan: Plan, group: Sequence[Trial]) -> float:
    """How long these trials' rounds are expected to take: the one that all of them run next, and the others of a few."""
    this_round = min((len(trial.confirmations) for trial in group), default=0) + 1
    few = group[: LEAST_RIVALS + 1]  # the others are expected to drop out
    further_s = rounds_seconds(few, plan.confirmation_rounds, plan.is_cpu) - rounds_seconds(
        few, this_round, plan.is_cpu
    )
    return rounds_seconds(group, this_round, plan.is_cpu) + max(0.0, further_s)


def finishing_seconds(trials: Sequence[Trial], objective: str) -> float:
    """How long the best trial's sanity check is expected to take; 0 where there is none."""
    best = best_trial(trials, objective)
    return 0.0 if best is None else sanity_check_seconds(best)


def sanity_check_seconds(best: Trial) -> float:
    """How long a few steps, one evaluation batch and one checkpoint are expected to take."""
    return starting_seconds(best.measurement) + CHECKED_STEPS * (best.final.step_time_s or 0.0)
