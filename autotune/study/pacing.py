"""Seconds that measurements are expected to take: a probe, a round, the sanity check, all that is left."""

import math
from collections.abc import Sequence
from statistics import fmean

from autotune.core import Measurement, Trial
from autotune.judge.standing import Standing
from autotune.probe.order import Timing, timings
from autotune.probe.train.adaptive import HOPELESS_LEAST
from autotune.study.plan import Plan

LONG_STEP_S = 0.5
"""Seconds of a step, all its micro-steps together, from which on rounds after a trial's first run few of them. A round has seven
steps at least, and on a GPU eight seconds: below this its start takes longer than its steps on two processor cores."""

TYPICAL_PROBES, LATER_PROBES = 10, 2
"""Probes of a search that ends because nothing is worth its seconds (the median of 84 replays on recorded tables, from 6 to 14),
and further ones that are expected from then on."""

TYPICAL_ROUNDS, LATER_ROUNDS = 5, 2
"""Measurements again, of all its trials, that a search without a time limit takes to find and prove the fastest (medians of
replays on recorded tables: 4 where processes differ by 0.5 %, 5 at 2 %, 14 at 10 %), and further ones from then on."""

PACED = 3
"""Measurements from which on their repetitions are expected of the others too: a busy machine repeats its first ones most."""

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
    step_s = _run_s(probe) if composed else probe.step_time_s or 0.0
    timing = timings(is_cpu)[1]
    timed_s = max(HOPELESS_LEAST * step_s, min(timing.timed_least * step_s, timing.seconds), timing.timed_seconds_least)
    return probe.starting_s + untimed_seconds(timing, step_s) + timed_s


def untimed_seconds(timing: Timing, step_s: float) -> float:
    """Seconds that such steps are expected to take before they are timed.

    Half of all trainings on a CPU take one step more than the least: 17 of 30 rounds of a search. Windows agree at once.
    """
    if not timing.window_s:
        return (timing.untimed_least + 0.5) * step_s
    windows_s = min(2 * max(timing.window_s, step_s), timing.untimed_seconds_most)
    return step_s * max(timing.untimed_least, 1 + math.ceil(windows_s / max(step_s, 1e-9)))


def _run_s(probe: Measurement) -> float:
    """Mean seconds of its steps as they were run, of few micro-steps if it is composed."""
    return fmean(step.seconds for step in probe.steps) if probe.steps else 0.0


def seconds_to_go(
    plan: Plan,
    standing: Standing,
    searching: bool,
    pace: Sequence[tuple[float, float]] = (),
    reference_s: float = 0.0,
) -> float | None:
    """Seconds that the search is expected to take still; before the first trial its time limit, None without one.

    searching: with the probes that are expected, and what proves the fastest; else the sanity check alone. pace: seconds that
    measurements took on the clock, and those of their probes alone: if the machine is disturbed they are repeated.
    reference_s: of the losses' reference.
    """
    trials = standing.trials
    if not trials:
        return plan.time.seconds_left() if plan.time.is_set else None
    seconds = finishing_seconds(standing)
    if searching:
        others = [trial.measurement.probe_seconds for trial in trials[1:]] or [trials[0].measurement.probe_seconds]
        further = probes_to_go(plan, trials)
        seconds += further * fmean(others)
        seconds += _rounds_to_go_s(plan, standing, further) + reference_s
    on_the_clock, of_probes = (sum(column) for column in zip(*pace, strict=True)) if len(pace) >= PACED else (1.0, 1.0)
    return min(seconds * (on_the_clock / of_probes if of_probes else 1.0), plan.time.seconds_left())


def _rounds_to_go_s(plan: Plan, standing: Standing, further: int) -> float:
    """Seconds of the further rounds that are expected with so many further probes; 0 without a rival of the user's settings."""
    best, trials = standing.leader, standing.trials
    pair = {trial.number: trial for trial in (best, *trials[:1]) if trial is not None and trial.feasible}
    if not pair or (len(trials) == 1 and not further) or not plan.confirmation_rounds:
        return 0.0
    rounds = max(TYPICAL_ROUNDS - sum(len(trial.confirmations) for trial in trials), LATER_ROUNDS)
    return rounds * fmean(round_seconds(trial, plan.is_cpu) for trial in pair.values())


def probes_to_go(plan: Plan, trials: Sequence[Trial]) -> int:
    """Further probes that are expected: all that are left if the sampler knows no gains, for which it would stop."""
    left = max(0, plan.probes(trials) - len(trials))
    return left if plan.sampler != "physics" else min(left, max(TYPICAL_PROBES - len(trials), LATER_PROBES))


def finishing_seconds(standing: Standing) -> float:
    """Seconds that the best trial's sanity check is expected to take; 0 if there is none."""
    best = standing.answer
    return 0.0 if best is None else sanity_check_seconds(best)


def sanity_check_seconds(best: Trial) -> float:
    """Seconds that a few steps, one evaluation batch and one checkpoint are expected to take."""
    probe = best.measurement
    return probe.starting_s + CHECKED_STEPS * _run_s(probe)
