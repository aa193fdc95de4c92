"""Confirmation: a race of the finalists and the baseline in interleaved rounds, until the best one is known.

round 1:  baseline  A  B  C  D        D is surely slower than A
round 2:  A  B  C  baseline           what C can still win is worth less than its next round
round 3:  B  baseline  A              A is faster than B, or both are as fast: over
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.core import Measurement, Trial
from autotune.core.interval import student_t_975
from autotune.sampler.gp import expected_improvement
from autotune.sampler.physics import Expected
from autotune.study.finalists import finalists
from autotune.study.objective import RoundSpeeds, fastest_proven, is_open, speed_up
from autotune.study.pacing import LEAST_RIVALS, one_round_seconds, round_seconds, rounds_seconds

MOST_GROUPS = 4
"""Races that are run at most, one after the other: each brings those in that look faster than the leader of the one before."""

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


def confirm(
    trials: list[Trial],
    objective: str,
    rounds: int,
    run_rounds: "RunRounds",
    seconds_left: Callable[[], float] = lambda: math.inf,
    spare_s: Callable[[], float] = lambda: 0.0,
    expected: Callable[[], Expected | None] = lambda: None,
    confirmed: Callable[[Trial], None] = lambda trial: None,
    compare: Callable[[int], None] = lambda round_number: None,
    run_seconds: float = math.inf,
    begins: Callable[[Sequence[int]], None] = lambda numbers: None,
    at_once: Callable[[], int] | None = None,
    is_cpu: bool = True,
    reference_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Add confirmations to the trials in this list: the finalists' and the baseline's, in interleaved rounds.

    rounds: of the leader and the baseline at the least; up to twice as many are run while it is open which of them is
    faster. A rival runs on while it may still win more over `run_seconds` of training than its next round costs. run_rounds: runs
    each round on one device and adds what it measures. expected: what all measurements so far
    say together. confirmed: called with a trial once its round is among the trials. compare: called with the number of each
    round that is complete; it may disqualify trials in the list. begins: called with the numbers of the trials that run the
    round that begins, in their order. at_once: how many rounds run side by side, on several devices. is_cpu: of the device.
    reference_s: seconds of the losses' reference in the next round, which is left out if it is not expected to end in time.

    seconds_left: for the whole confirmation. Where that is limited, no round begins that is not expected to end in time,
    there are fewer finalists where time is short, and a baseline without a rival is not measured again. spare_s: of
    these, what further rounds and further finalists leave for what follows. What `run_rounds` raises passes, and what was
    measured before stays; a round that was interrupted is completed first on one device, never on several.
    """

    def is_worth(trial: Trial, gain: float) -> bool:
        return gain * run_seconds > round_seconds(trial, is_cpu)

    def chosen(among: Sequence[Trial]) -> list[Trial]:
        least_gain = 0.0 if _has_time(among) else CLEARLY
        drawn = model.speeds if model else None
        return finalists(among, objective, drawn=drawn, is_worth=is_worth, least_gain=least_gain)

    def add(number: int, round_number: int, measurement: Measurement) -> None:
        index = next(i for i, trial in enumerate(trials) if trial.number == number)
        kept = [measured for measured in trials[index].confirmations if measured.round != round_number]
        kept.append(replace(measurement, round=round_number))
        trials[index] = replace(trials[index], confirmations=tuple(sorted(kept, key=lambda measured: measured.round)))
        confirmed(trials[index])

    for _ in range(MOST_GROUPS if rounds else 0):
        model = expected()
        noise = model.noise if model else NOISE
        rivals = still_racing(trials, objective, rounds, run_seconds, noise, is_cpu=is_cpu)
        last_round = _last_round(trials)
        if rivals and last_round == 1:  # perhaps interrupted before all finalists ran it
            fresh = [replace(trial, confirmations=()) for trial in trials]
            first = [trial for trial in chosen(fresh) if trial.number]
            rivals += [trial for trial in trials if not trial.rounds and trial.number in _numbers(first)]
        rivals = rivals or chosen(trials)
        group = _in_time(trials, rivals, rounds, seconds_left(), spare_s(), objective, is_cpu, reference_s())
        numbers = _numbers(group)
        alone = numbers == [0] and not any(trial.confirmations for trial in trials[1:])
        if not numbers or (alone and math.isfinite(seconds_left())):
            return
        while numbers:
            running = [trial for trial in trials if trial.number in numbers]
            is_further = all(len(trial.confirmations) >= rounds for trial in running)
            needed_s = one_round_seconds(running, is_cpu)
            if needed_s > seconds_left() - (spare_s() if is_further else 0.0):
                return
            interrupted = any(trial.confirmations for trial in rivals) and _last_round(trials) == last_round
            is_incomplete = at_once is None and interrupted and any(last_round not in trial.rounds for trial in running)
            round_number = _last_round(trials) + (not is_incomplete)
            begins(rotated(numbers, round_number - 1))
            count = min(at_once(), _rounds_to_run(running, rounds)) if at_once else 1
            several = range(round_number, round_number + count)
            run_rounds({each: rotated(numbers, each - 1) for each in several}, add)
            for each in several:
                compare(each)
            racing = _numbers(still_racing(trials, objective, rounds, run_seconds, noise, numbers, is_cpu))
            numbers = [number for number in numbers if number in racing]


Add = Callable[[int, int, Measurement], None]
RunRounds = Callable[[Mapping[int, Sequence[int]], Add], None]
"""Runs rounds (number of the round -> numbers of its trials in their order) and adds (trial, round, measurement) as they come."""


def _rounds_to_run(running: Sequence[Trial], rounds: int) -> int:
    """How many rounds these trials run still at the least, or at the most once they have those."""
    ran = min(len(trial.confirmations) for trial in running)
    return max(1, (rounds if ran < rounds else 2 * rounds) - ran)


def _in_time(
    trials: Sequence[Trial],
    rivals: Sequence[Trial],
    rounds: int,
    seconds: float,
    spare_s: float,
    objective: str,
    is_cpu: bool,
    reference_s: float,
) -> list[Trial]:
    """Those that race: the baseline, the leader of earlier rounds, and of the rivals, the best first, as many as there is
    time for: two, or those of which at least one round ends in time; more where all their rounds do and leave time to spare.
    With the losses' reference, if that ends in time too with one rival.
    """
    earlier = [trial for trial in trials if trial.confirmed and not trial.disqualified_reason]
    leader = fastest_proven(earlier, trials, objective)
    always = [*([leader] if leader else []), *(trial for trial in trials[:1] if trial.feasible)]

    def group_of(count: int) -> list[Trial]:
        return list({trial.number: trial for trial in [*rivals[:count], *always]}.values())

    if one_round_seconds(group_of(1), is_cpu) + reference_s <= seconds:
        seconds -= reference_s
    for count in range(len(rivals), 0, -1):
        group = group_of(count)
        is_short = rounds_seconds(group, rounds, is_cpu) > seconds - spare_s
        if not (count > LEAST_RIVALS and is_short) and one_round_seconds(group, is_cpu) <= seconds:
            return group
    return []


# The race ----------------------------------------------------------------------------------------------------------


def still_racing(
    trials: Sequence[Trial],
    objective: str,
    rounds: int,
    run_seconds: float,
    noise: float = NOISE,
    numbers: Sequence[int] | None = None,
    is_cpu: bool = True,
) -> list[Trial]:
    """The trials that run another round: the leader, the baseline and who may still win; none where the race is over.

    noise: of one round of one trial, as a share of its speed, before any. numbers: of those that ran the last round; by default
    all that ran any. Nobody runs more than twice the `rounds`.
    """
    ran = [trial for trial in trials if trial.confirmations and (numbers is None or trial.number in numbers)]
    able = [trial for trial in ran if trial.confirmed and not trial.disqualified_reason]
    has_time = _has_time(trials)
    if objective == "memory":
        rivals = [trial for trial in able if trial.number]
        is_far = has_time and any(_cannot_tell(trial, [trials[0], trial], objective) for trial in rivals)
        return [trial for trial in able if len(trial.confirmations) < (2 if is_far else 1) * rounds]
    leader = fastest_proven(able, trials, objective)
    if leader is None:
        return []
    shared = RoundSpeeds.of(able, objective)
    # The fastest of all may learn differently, and not be proven yet: it runs its rounds all the same.
    fastest = max(able, key=lambda trial: shared.speeds[trial.number])
    pair = [trial for trial in able if trial.number in (0, leader.number, fastest.number)]
    rivals = [trial for trial in able if has_time and trial not in pair and len(trial.confirmations) < 2 * rounds]
    pair_s = sum(round_seconds(trial, is_cpu) for trial in pair) / max(1, len(rivals))
    rivals = [
        trial
        for trial in rivals
        if _left_to_win(trial, leader, shared, noise) * run_seconds > round_seconds(trial, is_cpu) + pair_s
    ]
    is_short = any(len(trial.confirmations) < rounds for trial in pair)
    if (
        rivals
        or is_short
        or (has_time and len(fastest.confirmations) < 2 * rounds and _cannot_tell(fastest, pair, objective))
    ):
        return [trial for trial in able if trial in pair or trial in rivals]
    return []


def _has_time(trials: Sequence[Trial]) -> bool:
    """Whether the confirmation has taken no longer than it may beyond the rounds that are needed."""
    spent_s = sum(measured.probe_seconds for trial in trials for measured in trial.confirmations)
    return spent_s <= FURTHER * sum(trial.measurement.probe_seconds for trial in trials)


def _cannot_tell(leader: Trial, pair: Sequence[Trial], objective: str) -> bool:
    """Whether it is open how much faster than the baseline the leader is."""
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


def _last_round(trials: Iterable[Trial]) -> int:
    return max((number for trial in trials for number in trial.rounds), default=0)


def _numbers(trials: Iterable[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def rotated(rivals: Sequence[int], by: int) -> list[int]:
    """A B C, then B C A, then C A B: no rival always runs on the warmer machine."""
    by %= max(1, len(rivals))
    return [*rivals[by:], *rivals[:by]]
