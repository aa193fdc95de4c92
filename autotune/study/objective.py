"""Comparison of trials: the best one, speed-up, and the Pareto front of speed and memory."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from autotune.core.interval import Interval, Ratio, quotient_interval, quotient_of_means
from autotune.core.measurement import ROUNDS_THAT_TELL, Measurement
from autotune.core.trial import Trial
from autotune.space.settings import learning_differences

SAME_MEMORY = 0.05
"""Peaks that differ by less than this share are no reason to take the slower of two."""

SAME_PEAK = 0.02
"""Share by which two peaks differ at least where less memory is what was asked for, and where a headline speaks of it."""

SAME_SPEED = 0.01
"""Speeds that noise does not tell apart count as equal only where they differ by less than this share. On recorded tables with
0.5 % noise the simplest of the equal ones is 0.04 % slower on average than the fastest; with a share of 2 % it would be up to
0.5 %, with 5 % 1.6 %."""

FITTING_STEPS = 20
"""Alternations of means over rounds and over trials; where all trials ran in all rounds the second changes nothing."""

SPEED_UP_WIDTH = 0.1
"""Full width of the speed-up's 95 % interval, as a share of it, from which on further rounds are not worth their time; a wider
one that holds 1 tells neither that a configuration is faster nor that it is as fast."""


TOLD_WIDTH = 0.5
"""Full width of a speed-up's 95 % interval, as a share of it, up to which a search that runs shows the speed-up."""


def value(measurement: Measurement, objective: str, memory_limit_bytes: int) -> float:
    """What the study is told: samples or tokens / second, or peak bytes; the worst value (0, or the limit) if infeasible."""
    worst = float(memory_limit_bytes) if objective == "memory" else 0.0
    if not measurement.feasible:
        return worst
    if objective == "memory":
        return float(measurement.peak_bytes or memory_limit_bytes)
    rate = speed(measurement, objective)
    return rate.value if rate else worst


def speed(measurement: Measurement, objective: str) -> Interval | None:
    """The rate that the objective compares: tokens / second where asked for and known, else samples / second.

    Of tokens those that are no padding: more padding is no more work done. Over a run of announced length, what it spends
    on compiling counts.
    """
    rate = measurement.samples_per_second
    if objective == "tokens_per_second" and measurement.tokens_per_second:
        rate = measurement.non_padding_tokens_per_second or measurement.tokens_per_second
    share = measurement.after_compiling
    return rate if rate is None or share == 1.0 else Interval(rate.value * share, rate.low * share, rate.high * share)


def pays_from(best: Trial, trials: Sequence[Trial]) -> int:
    """Steps of a run from which on the best trial's compiling has paid against each feasible one that compiles less.

    0 where it compiles nothing. Where none is slower over any number of steps, that one does not count.
    """
    steps = 0.0
    for trial in trials:
        saved_s = (trial.final.step_time_s or 0.0) - (best.final.step_time_s or 0.0)
        spent_s = best.measurement.compile_s - trial.measurement.compile_s
        if trial.feasible and spent_s > 0 and saved_s > 0:
            steps = max(steps, spent_s / saved_s)
    return math.ceil(steps)


def best_trial(trials: Sequence[Trial], objective: str) -> Trial | None:
    """The answer: the user's own settings, trial 0, unless another trial is shown to be better; None where nothing may win.

    Where the baseline has a rival in its rounds, only what ran in rounds can win; else probes are compared with its probe.
    Of the trials that cannot be told from the fastest one shown, the one with the fewest changes of the user's settings
    wins, then the one with less memory. Where the baseline does not run, all that was measured counts as shown. For `memory`
    the smallest peak at no less than the baseline's speed.
    """
    able = _competing(trials)
    baseline = next((trial for trial in able if trial.number == 0), None)
    if baseline is None:
        return _simplest(able, able, trials, objective)
    better = [trial for trial in able if trial.number and is_better(trial, baseline, objective)]
    return _simplest(better, able, trials, objective) or baseline


def leader(trials: Sequence[Trial], objective: str) -> Trial | None:
    """The trial that others have to beat while the search runs, shown to be better than the baseline or not yet; None if there
    is none. Confirmed ones come before others; one that learns differently leads only if it is shown to be faster."""
    able = _able(trials)
    if objective == "memory":
        able = [trial for trial in able if trial.confirmed] or able
        return min(as_fast_as_the_baseline(able, trials), key=lambda trial: trial.peak_bytes or 0, default=None)
    confirmed = [trial for trial in able if trial.confirmed]
    return fastest_proven(confirmed, trials, objective) or fastest_proven(able, trials, objective)


def _able(trials: Sequence[Trial]) -> list[Trial]:
    return [
        trial
        for trial in trials
        if trial.feasible and not trial.measurement.ended_early and not trial.disqualified_reason
    ]


def _competing(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that may win: those with rounds, where the baseline has a rival in its rounds or does not run, else all."""
    able = _able(trials)
    confirmed = [trial for trial in able if trial.confirmed]
    if not any(trial.number == 0 for trial in able):
        return confirmed or able
    return confirmed if len(confirmed) > 1 and confirmed[0].number == 0 else able


def is_better(trial: Trial, baseline: Trial, objective: str) -> bool:
    """Whether the trial is shown to be better than the baseline: surely (97.5 %) faster, or leaner and as fast.

    What is only leaner has to learn alike and to be confirmed, because a single probe's interval does not cover what differs
    between two processes. For `memory` it has to be leaner in any case.
    """
    gain, _ = speed_up(trial, baseline, objective)
    if gain is None:
        return False
    if objective == "memory":
        return is_leaner(trial, baseline, SAME_PEAK) and not is_open(gain)
    if gain.low > 1:
        return True
    is_as_fast = not is_open(gain) and gain >= 1 - SAME_SPEED
    learns_alike = not learning_differences(trial.configuration, baseline.configuration)
    return is_as_fast and trial.confirmed and learns_alike and is_leaner(trial, baseline, SAME_MEMORY)


def is_leaner(trial: Trial, baseline: Trial, share: float) -> bool:
    """Whether each of its measurements needed less memory, by this share, than any of the baseline's."""
    peaks, others = ([m.peak_bytes or 0 for m in each.measurements if m.feasible] for each in (trial, baseline))
    return all(peaks) and max(peaks) <= (1 - share) * min(others)


def changes(trial: Trial, trials: Sequence[Trial]) -> int:
    """How many of the user's settings the trial changes; 0 without a baseline among the trials."""
    if not trials or trials[0].number != 0:
        return 0
    values, before = trial.configuration.values, trials[0].configuration.values
    return sum(before.get(name) != value for name, value in values.items())


def _simplest(better: Sequence[Trial], able: Sequence[Trial], trials: Sequence[Trial], objective: str) -> Trial | None:
    """Of the trials that cannot be told from the best of `better` the one with the fewest changes, then with less memory."""
    if not better:
        return None
    if objective == "memory":
        least = min(trial.peak_bytes or 0 for trial in better)
        equal = [trial for trial in better if (1 - SAME_PEAK) * (trial.peak_bytes or 0) <= least]
        return min(equal, key=lambda trial: (changes(trial, trials), trial.peak_bytes or 0))
    speeds = RoundSpeeds.of(able, objective).speeds
    fastest = max(better, key=lambda trial: speeds[trial.number])
    ahead = {trial.number: quotient(fastest, trial, objective) for trial in better if trial is not fastest}
    equal = [t for t in better if t is fastest or (ahead[t.number].low <= 1 and ahead[t.number] <= 1 + SAME_SPEED)]
    fewest = min(changes(trial, trials) for trial in equal)
    equal = [trial for trial in equal if changes(trial, trials) == fewest]
    least = min(trial.peak_bytes or 0 for trial in equal)
    lean = [trial for trial in equal if (trial.peak_bytes or 0) <= (1 + SAME_MEMORY) * least]
    return max(lean, key=lambda trial: speeds[trial.number])


def in_whole_rounds(trials: Sequence[Trial], objective: str) -> Sequence[Trial]:
    """The trials without what they measured in a round that ended before the baseline's turn.

    A speed of these minutes cannot be compared with the baseline's of others: what the machine did meanwhile would count as
    an effect. What failed in such a round stays. A baseline that runs and may win takes part in every round (study/race.py),
    but for `memory`, where no speeds are compared.
    """
    baseline = next((trial for trial in trials if trial.number == 0), None)
    if objective == "memory" or baseline is None or not baseline.feasible or baseline.disqualified_reason:
        return trials
    last = max(baseline.rounds, default=0)

    def whole(trial: Trial) -> Trial:
        pairs = zip(trial.rounds, trial.confirmations, strict=True)
        kept = tuple(measured for number, measured in pairs if number <= last or not measured.feasible)
        return trial if len(kept) == len(trial.confirmations) else replace(trial, confirmations=kept)

    return [whole(trial) for trial in trials]


def round_speeds(trial: Trial, objective: str) -> dict[int, float]:
    """The number of each round that the trial completed -> its speed there."""
    rates = {
        number: speed(measured, objective) for number, measured in zip(trial.rounds, trial.confirmations, strict=True)
    }
    return {number: float(rate) for number, rate in rates.items() if rate}


def quotient(above: Trial, below: Trial, objective: str) -> Ratio:
    """Speed over speed with its interval: round by round where both were confirmed in the same ones, else of the means.

    Where only one has rounds, probe over probe: the machine of the rounds may be another one than that of the probes.
    """
    speeds, others = round_speeds(above, objective), round_speeds(below, objective)
    common = sorted(speeds.keys() & others.keys())
    if len(common) >= ROUNDS_THAT_TELL:
        return quotient_interval([speeds[number] for number in common], [others[number] for number in common])
    of_probes = not (above.confirmations and below.confirmations)
    rate, base_rate = (speed(t.measurement if of_probes else t.final, objective) for t in (above, below))
    assert rate is not None
    assert base_rate is not None
    means = quotient_of_means(rate, base_rate)
    if not common:
        return means
    paired = quotient_interval([speeds[number] for number in common], [others[number] for number in common]).value
    return Ratio(paired, means.low * paired / means, means.high * paired / means)


@dataclass(frozen=True)
class RoundSpeeds:
    """Speeds of trials with what their rounds did to all of them taken out: some ran in more rounds than others."""

    speeds: Mapping[int, float]  # trial number -> samples or tokens / second; without rounds, as it was probed
    residuals: Sequence[float]  # what is left of the logarithm of each trial's speed in each round
    degrees: int  # of freedom of the residuals

    @classmethod
    def of(cls, trials: Sequence[Trial], objective: str) -> "RoundSpeeds":
        """Two-way layout without interaction, trials by rounds, of logarithms, fitted by alternating means."""
        rates = {trial.number: round_speeds(trial, objective) for trial in trials}
        logs = {
            (trial, number): math.log(rate) for trial, by_round in rates.items() for number, rate in by_round.items()
        }
        of_trial, of_round = (
            dict.fromkeys((trial for trial, _ in logs), 0.0),
            dict.fromkeys((number for _, number in logs), 0.0),
        )
        for _ in range(FITTING_STEPS):
            for trial in of_trial:
                of_trial[trial] = fmean(log - of_round[number] for (who, number), log in logs.items() if who == trial)
            for number in of_round:
                of_round[number] = fmean(log - of_trial[who] for (who, when), log in logs.items() if when == number)
        middle = fmean(of_round.values()) if of_round else 0.0
        probed = {trial.number: float(speed(trial.final, objective) or 0.0) for trial in trials}
        return cls(
            probed | {trial: math.exp(log + middle) for trial, log in of_trial.items()},
            [log - of_trial[trial] - of_round[number] for (trial, number), log in logs.items()],
            max(0, len(logs) - len(of_trial) - len(of_round) + 1),
        )


def fastest_proven(able: Sequence[Trial], trials: Sequence[Trial], objective: str) -> Trial | None:
    """The fastest of these by the rounds that they share; of those that learn differently from the baseline only what is
    surely faster. None where there is none. trials: all of the study."""
    speeds = RoundSpeeds.of(able, objective).speeds
    baseline = next((trial for trial in trials if trial.number == 0), None)

    def is_proven(trial: Trial) -> bool:
        if baseline is None or not learning_differences(trial.configuration, baseline.configuration):
            return True
        gain, _ = speed_up(trial, baseline, objective)
        return gain is None or gain.low > 1

    return max(filter(is_proven, able), key=lambda trial: speeds[trial.number], default=None)


def is_open(gain: Interval) -> bool:
    """Whether a speed-up tells neither that the trial is faster than the baseline nor that it is as fast."""
    return gain.low <= 1 and (gain.high < 1 or gain.relative_width > SPEED_UP_WIDTH)


def disqualified(trials: Sequence[Trial], objective: str) -> list[tuple[Trial, str]]:
    """Trials that were faster than the best one and did not win, with the reason; confirmed ones first, then by speed.

    For `memory` those that are disqualified, whatever their speed, and leaner ones that may be slower.
    """
    best, competing = best_trial(trials, objective), _competing(trials)
    baseline = next((trial for trial in competing if trial.number == 0), None)
    is_memory = objective == "memory"
    rivals = []
    for trial in trials:
        if not trial.feasible or trial.measurement.ended_early or trial is best:
            continue
        if best is not None and not is_memory and quotient(trial, best, objective) <= 1:
            continue
        gain = speed_up(trial, baseline, objective)[0] if baseline is not None else None
        is_behind = is_memory and best is not None and not is_leaner(trial, best, SAME_PEAK)
        if trial.disqualified_reason:
            rivals.append((trial, trial.disqualified_reason))
        elif gain is not None and is_open(gain) and gain.high >= 1 and trial in competing and not is_behind:
            rivals.append((trial, f"it cannot be told to be {'as fast' if is_memory else 'faster'}"))
    return sorted(rivals, key=lambda pair: (not pair[0].confirmed, -float(speed(pair[0].final, objective) or 0.0)))


def as_fast_as_the_baseline(able: Sequence[Trial], trials: Sequence[Trial]) -> list[Trial]:
    """Those of `able` whose speed is not below the interval of the baseline's, if that runs. trials: all of the study."""
    baseline = next((trial for trial in trials if trial.number == 0 and trial.feasible), None)
    if baseline is None or baseline.samples_per_second is None:
        return list(able)
    floor = baseline.samples_per_second.low
    return [trial for trial in able if trial.samples_per_second and trial.samples_per_second.value >= floor]


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Feasible trials that no other beats in both speed and peak memory, fastest first."""
    able = [t for t in trials if t.feasible and not t.disqualified_reason and t.samples_per_second and t.peak_bytes]
    able.sort(key=lambda t: (-t.samples_per_second.value, t.peak_bytes))  # type: ignore[union-attr]
    front: list[Trial] = []
    for trial in able:
        if not front or (trial.peak_bytes or 0) < (front[-1].peak_bytes or 0):
            front.append(trial)
    return front


def speed_up(best: Trial, baseline: Trial, objective: str) -> tuple[Ratio | None, str]:
    """How many times as fast as the baseline, with its interval; None and the reason where the baseline has no speed."""
    if not baseline.feasible:
        return (
            None,
            f"the baseline does not run here: {baseline.final.outcome} ({baseline.final.reason or 'no reason given'})",
        )
    above, below = speed(best.final, objective), speed(baseline.final, objective)
    if above is None or below is None:
        return None, "the baseline has no speed to compare with"
    if best.number == baseline.number:
        return Ratio(1.0, 1.0, 1.0), ""
    return quotient(best, baseline, objective), ""


def comparable(trials: Sequence[Trial], objective: str) -> tuple[Trial, ...]:
    """The trials of a search that runs, all as they can be compared now: by whole rounds, and by their probes alone while
    nothing but the baseline has one."""
    whole = in_whole_rounds(trials, objective)
    if any(trial.number and trial.confirmed for trial in whole):
        return tuple(whole)
    return tuple(replace(trial, confirmations=()) if trial.confirmed else trial for trial in whole)


def fastest_so_far(trials: Sequence[Trial], objective: str) -> Trial | None:
    """The fastest trial that may win, by rounds if any has one, shown to be faster or not; for `memory` the leader."""
    if objective == "memory":
        return leader(trials, objective)
    able = _able(trials)
    able = [trial for trial in able if trial.confirmed] or able
    return max(able, key=lambda trial: float(speed(trial.final, objective) or 0.0), default=None)


def told_speed_up(trial: Trial, baseline: Trial, objective: str) -> Ratio | None:
    """How many times as fast as the baseline, to show while a search runs; None if noise hides it (its interval is wider
    than TOLD_WIDTH) and if only one of the two was measured in rounds: the machine is another one minutes later."""
    if trial.confirmed != baseline.confirmed:
        return None
    gain, _ = speed_up(trial, baseline, objective)
    return gain if gain is not None and gain.relative_width <= TOLD_WIDTH else None
