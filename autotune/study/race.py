"""Confirmation as a race of the finalists and the baseline in interleaved rounds, until the best one is known.

round 1:  baseline  A  B  C  D        D is surely slower than A
round 2:  A  B  C  baseline           what C can still win is worth less than its next round
round 3:  B  baseline  A              A is faster than B, or both are as fast: over
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from autotune.core import Trial
from autotune.core.interval import student_t_975
from autotune.sampler.gp import expected_improvement
from autotune.sampler.physics import Expected
from autotune.study.finalists import finalists
from autotune.study.objective import RoundSpeeds, fastest_proven, in_whole_rounds, is_open, leader, speed_up
from autotune.study.pacing import LEAST_RIVALS, finishing_seconds, one_round_seconds, round_seconds, rounds_seconds
from autotune.study.plan import Plan

EQUAL = 0.02
"""A rival that is surely no faster than the leader by more than this share is as fast, and leaves the race."""

FURTHER = 1.0
"""Rivals run on while the confirmation has taken no more than this share of the time that the search's probes took, and so do
the leader and the baseline beyond the rounds that they need: a short search is not worth a long confirmation."""

CLEARLY = 0.05
"""Share by which what was not confirmed has to look faster than the best for a further race after that time."""

NOISE, NOISE_DEGREES = 0.03, 3
"""What one process differs from another of the same configuration in one round, as a share of the speed, where nothing told it
before the first round, and how many degrees of freedom what was told counts for: it is 0.5 % on a quiet device and 10 % on a
shared one (reports/replay.md)."""


def next_round(
    trials: Sequence[Trial],
    plan: Plan,
    expected: Expected | None = None,
    reference_s: float = 0.0,
    is_new: bool = True,
) -> list[int]:
    """The numbers of the trials that run the next round of the confirmation, the baseline's last; empty if none is to be run.

    Those of the last round that may still win, with the leader and the baseline; once that race is over, those that are not
    confirmed and look faster than its leader. There are at least the plan's rounds of the leader and the baseline; up to twice
    as many while it is open which of them is faster. A rival runs on while it may still win more over the training that follows
    than its next round costs.

    All trials have ended the rounds that they have begun. expected: what all measurements so far say together. reference_s:
    seconds of the losses' reference in the next round, which is left out if it is not expected to end in time. is_new: whether
    another race may begin, or only that of the last round go on. If the time is limited, no round begins that is not expected to
    end in time, and there are fewer finalists if it is short.
    """
    if not plan.confirmation_rounds or not trials:
        return []
    trials = in_whole_rounds(trials, plan.objective)
    noise = expected.noise if expected else NOISE
    numbers = _numbers(_of_last_round(trials, plan, noise))
    if not numbers and is_new:
        rivals = still_racing(trials, plan, noise) or _chosen(trials, plan, expected)
        numbers = _numbers(_in_time(trials, rivals, plan, reference_s))
    if numbers in ([], [0]):  # the baseline against nobody
        return []
    running = [trial for trial in trials if trial.number in numbers]
    is_further = all(len(trial.confirmations) >= plan.confirmation_rounds for trial in running)
    spare_s = finishing_seconds(trials, plan.objective)
    if one_round_seconds(running, plan.is_cpu) > plan.time.seconds_left() - (spare_s if is_further else 0.0):
        return []
    return sorted(numbers, key=lambda number: (number == 0, number))


def _of_last_round(trials: Sequence[Trial], plan: Plan, noise: float) -> list[Trial]:
    last = last_round(trials)
    return still_racing(trials, plan, noise, [trial.number for trial in trials if last in trial.rounds]) if last else []


def _chosen(trials: Sequence[Trial], plan: Plan, expected: Expected | None) -> list[Trial]:
    run_s = plan.run_seconds(leader(trials, plan.objective))
    return finalists(
        trials,
        plan.objective,
        drawn=expected.speeds if expected else None,
        is_worth=lambda trial, gain: gain * run_s > round_seconds(trial, plan.is_cpu),
        least_gain=0.0 if _has_time(trials) else CLEARLY,
    )


def rounds_to_run(running: Sequence[Trial], rounds: int) -> int:
    """Number of rounds that these trials still need; once they have those, the number that they may still run."""
    ran = min(len(trial.confirmations) for trial in running)
    return max(1, (rounds if ran < rounds else 2 * rounds) - ran)


def _in_time(trials: Sequence[Trial], rivals: Sequence[Trial], plan: Plan, reference_s: float) -> list[Trial]:
    """Those that race: the baseline, the leader of earlier rounds, and of the rivals, the best first, as many as there is
    time for: two, or those of which at least one round ends in time; more where all their rounds do and leave time to spare.
    With the losses' reference, if that ends in time too with one rival.
    """
    objective, is_cpu = plan.objective, plan.is_cpu
    seconds, spare_s = plan.time.seconds_left(), finishing_seconds(trials, objective)
    earlier = [trial for trial in trials if trial.confirmed and not trial.disqualified_reason]
    first = fastest_proven(earlier, trials, objective)
    always = [*([first] if first else []), *(trial for trial in trials[:1] if trial.feasible)]

    def group_of(count: int) -> list[Trial]:
        return list({trial.number: trial for trial in [*rivals[:count], *always]}.values())

    if one_round_seconds(group_of(1), is_cpu) + reference_s <= seconds:
        seconds -= reference_s
    for count in range(len(rivals), 0, -1):
        group = group_of(count)
        is_short = rounds_seconds(group, plan.confirmation_rounds, is_cpu) > seconds - spare_s
        if not (count > LEAST_RIVALS and is_short) and one_round_seconds(group, is_cpu) <= seconds:
            return group
    return []


# The race ----------------------------------------------------------------------------------------------------------


def still_racing(
    trials: Sequence[Trial], plan: Plan, noise: float = NOISE, numbers: Sequence[int] | None = None
) -> list[Trial]:
    """The trials that run another round: the leader, the baseline and who may still win; none if the race is over.

    noise: of one round of one trial, as a share of its speed, before any. numbers: of those that ran the last round; by default
    all that ran any. Nobody runs more than twice the plan's rounds, and the baseline none against nobody.
    """
    objective, rounds, is_cpu = plan.objective, plan.confirmation_rounds, plan.is_cpu
    run_seconds = plan.run_seconds(leader(trials, objective))
    ran = [trial for trial in trials if trial.confirmations and (numbers is None or trial.number in numbers)]
    able = [trial for trial in ran if trial.confirmed and not trial.disqualified_reason]
    has_time = _has_time(trials)
    if objective == "memory":
        rivals = [trial for trial in able if trial.number]
        is_far = has_time and any(_cannot_tell(trial, [trials[0], trial], objective) for trial in rivals)
        return [trial for trial in able if len(trial.confirmations) < (2 if is_far else 1) * rounds]
    first = fastest_proven(able, trials, objective)
    if first is None:
        return []
    shared = RoundSpeeds.of(able, objective)
    # The fastest of all may learn differently, and not be proven yet: it runs its rounds all the same.
    fastest = max(able, key=lambda trial: shared.speeds[trial.number])
    pair = [trial for trial in able if trial.number in (0, first.number, fastest.number)]
    rivals = [trial for trial in able if has_time and trial not in pair and len(trial.confirmations) < 2 * rounds]
    pair_s = sum(round_seconds(trial, is_cpu) for trial in pair) / max(1, len(rivals))
    rivals = [
        trial
        for trial in rivals
        if _left_to_win(trial, first, shared, noise) * run_seconds > round_seconds(trial, is_cpu) + pair_s
    ]
    is_short = any(len(trial.confirmations) < rounds for trial in pair)
    if pair == trials[:1] and not rivals:
        return []
    if (
        rivals
        or is_short
        or (has_time and len(fastest.confirmations) < 2 * rounds and _cannot_tell(fastest, pair, objective))
    ):
        return [trial for trial in able if trial in pair or trial in rivals]
    return []


def _has_time(trials: Sequence[Trial]) -> bool:
    """True if the confirmation has taken no longer than it may beyond the rounds that are needed."""
    spent_s = sum(measured.probe_seconds for trial in trials for measured in trial.confirmations)
    return spent_s <= FURTHER * sum(trial.measurement.probe_seconds for trial in trials)


def _cannot_tell(leader: Trial, pair: Sequence[Trial], objective: str) -> bool:
    """True if it is open how much faster than the baseline the leader is."""
    if len(pair) < 2:
        return False
    gain, _ = speed_up(leader, pair[0], objective)
    return gain is not None and gain.high >= 1 and is_open(gain)


def _left_to_win(rival: Trial, leader: Trial, shared: RoundSpeeds, noise: float) -> float:
    """Share of the speed that is expected to be lost by not knowing whether the rival is faster; 0 where it surely is no faster
    by EQUAL."""
    degrees = NOISE_DEGREES + shared.degrees
    squares = NOISE_DEGREES * noise**2 + sum(residual**2 for residual in shared.residuals)
    rounds = 1 / len(rival.confirmations) + 1 / len(leader.confirmations)
    error = max(math.sqrt(squares / degrees * rounds), 1e-9)
    ahead = math.log(shared.speeds[rival.number] / shared.speeds[leader.number])
    if ahead + student_t_975(degrees) * error <= math.log1p(EQUAL):
        return 0.0
    return float(expected_improvement(np.array([ahead]), np.array([error]), 0.0)[0])


def last_round(trials: Iterable[Trial]) -> int:
    return max((number for trial in trials for number in trial.rounds), default=0)


def _numbers(trials: Iterable[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def rotated(rivals: Sequence[int], by: int) -> list[int]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
