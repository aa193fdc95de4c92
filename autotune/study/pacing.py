"""Seconds that measurements are expected to take: a probe, a round, the sanity check, all that is left."""

from collections.abc import Sequence
from statistics import fmean

from autotune.core import Trial
from autotune.probe.order import timings
from autotune.probe.train.adaptive import HOPELESS_LEAST
from autotune.study.objective import best_trial, leader
from autotune.study.plan import Plan

LONG_STEP_S = 2.0
"""Seconds of a step, all its micro-steps together, from which on rounds after a trial's first run few of them. A round has seven
steps at least, and on a GPU eight seconds: below this nothing much is saved, from here on it is half a round and more."""

CHECKED_STEPS = 10
"""Steps that the sanity check is expected to take at most, its evaluation and checkpoint counted as some."""


def time_for_a_probe(plan: Plan, trials: Sequence[Trial]) -> bool:
    """True if another probe as long as the longest of the last two is expected to end in time."""
    probe_s = max((trial.measurement.probe_seconds for trial in trials[-2:]), default=0.0)
    return plan.time.seconds_left() >= probe_s and not plan.time.is_over


def round_seconds(trial: Trial, is_cpu: bool) -> float:
    """Seconds that its next round is expected to take: as its last one of that kind, else by its probe."""
    return _foreseen_s(trial, bool(trial.confirmations) and can_be_composed(trial), is_cpu)


def can_be_composed(trial: Trial) -> bool:
    """True if rounds of this trial after its first one need not run all micro-steps of its long step, but few as its probe did.

    Not if batches differ, of which few do not represent many, and not if that was tried in a round and failed.
    """
    probe = trial.measurement
    is_long = (probe.step_time_s or 0.0) >= LONG_STEP_S and probe.is_composed and not probe.worst_batch
    return is_long and not any(measured.whole_because for measured in trial.confirmations)


def _foreseen_s(trial: Trial, composed: bool, is_cpu: bool) -> float:
    """Seconds of one round of this kind: as the last one took.

    Else the seconds of its probe outside its steps, and as many steps as a round has.
    """
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
    return probe.starting_s + untimed_s + timed_s


def seconds_to_go(
    plan: Plan,
    trials: Sequence[Trial],
    searching: bool,
    pace: Sequence[tuple[float, float]] = (),
    reference_s: float = 0.0,
) -> float | None:
    """Seconds that the search is expected to take still; before the first trial its time limit, None without one.

    searching: with all the probes that are left, and what proves the fastest; else the sanity check alone. pace: seconds that
    measurements took on the clock, and those of their probes alone: if the machine is disturbed they are repeated.
    reference_s: of the losses' reference.
    """
    if not trials:
        return plan.time.seconds_left() if plan.time.is_set else None
    seconds = finishing_seconds(trials, plan.objective)
    if searching:
        others = [trial.measurement.probe_seconds for trial in trials[1:]] or [trials[0].measurement.probe_seconds]
        seconds += max(0, plan.probes(trials) - len(trials)) * fmean(others)
        best = leader(trials, plan.objective)
        pair = {trial.number: trial for trial in (best, *trials[:1]) if trial is not None and trial.feasible}
        for trial in pair.values():
            seconds += max(0, plan.confirmation_rounds - len(trial.confirmations)) * round_seconds(trial, plan.is_cpu)
        seconds += reference_s
    on_the_clock, alone = (sum(column) for column in zip(*pace, strict=True)) if pace else (1.0, 1.0)
    return min(seconds * (on_the_clock / alone if alone else 1.0), plan.time.seconds_left())


def finishing_seconds(trials: Sequence[Trial], objective: str) -> float:
    """Seconds that the best trial's sanity check is expected to take; 0 if there is none."""
    best = best_trial(trials, objective)
    return 0.0 if best is None else sanity_check_seconds(best)


def sanity_check_seconds(best: Trial) -> float:
    """Seconds that a few steps, one evaluation batch and one checkpoint are expected to take."""
    return best.measurement.starting_s + CHECKED_STEPS * (best.final.step_time_s or 0.0)
