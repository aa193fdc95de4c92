"""Comparison of trials: the best one, speed-up, and the Pareto front of speed and memory."""

import math
from collections.abc import Sequence
from functools import lru_cache

from autotune.core.interval import Interval, Ratio, quotient_interval, quotient_of_means
from autotune.core.measurement import ROUNDS_THAT_TELL, Measurement
from autotune.core.trial import Trial
from autotune.sampler.observation import Observation, observed
from autotune.space.settings import learning_differences
from autotune.space.substitute import compared_with

SAME_MEMORY = 0.05
"""Peaks that differ by less than this share are not a reason to take the slower of two."""

SAME_SPEED = 0.01
"""Speeds that noise does not tell apart count as equal only if they differ by less than this share. On recorded tables with
0.5 % noise the simplest of the equal ones is 0.04 % slower on average than the fastest; with a share of 2 % it would be up to
0.5 %, with 5 % 1.6 %."""

EACH_CHANGE = 0.003
"""Share of the speed that each changed setting has to win if noise does not tell two trials apart. The fewest changes of all
that look equal lost 1.1 % in every search on two recorded tables, and at 2 % noise 0.2 % on average."""

SPEED_UP_WIDTH = 0.1
"""Full width of the speed-up's 95 % interval, as a share of it, up to which it tells that a configuration is as fast; a wider
one that holds 1 tells neither that a configuration is faster nor that it is as fast."""


MAX_DISPLAY_WIDTH = 0.5
"""Full width of a speed-up's 95 % interval, as a share of it, up to which a search that runs shows the speed-up."""


def speed(measurement: Measurement, objective: str) -> Interval | None:
    """The rate that the objective compares: tokens / second if asked for and known, else samples / second.

    Of tokens those that are not padding: more padding is not more work. Over a run of announced length, what it spends
    on compiling counts.
    """
    rate = measurement.samples_per_second
    if objective == "tokens_per_second" and measurement.tokens_per_second:
        rate = measurement.non_padding_tokens_per_second or measurement.tokens_per_second
    share = measurement.after_compiling
    return rate if rate is None or share == 1.0 else Interval(rate.value * share, rate.low * share, rate.high * share)


def pays_from(best: Trial, trials: Sequence[Trial]) -> int:
    """Steps of a run from which on the best trial's compiling has paid against each feasible one that compiles less.

    0 if it compiles nothing. Where none is slower over any number of steps, that one does not count.
    """
    steps = 0.0
    for trial in trials:
        saved_s = (trial.final.step_time_s or 0.0) - (best.final.step_time_s or 0.0)
        spent_s = best.final.compile_s - trial.final.compile_s
        if trial.feasible and spent_s > 0 and saved_s > 0:
            steps = max(steps, spent_s / saved_s)
    return math.ceil(steps)


def best_trial(trials: Sequence[Trial], objective: str) -> Trial | None:
    """The answer: the user's own settings, trial 0, unless another trial is shown to be better; None if nothing may win.

    Once one was measured side by side with the baseline, only such can win; else probes are compared with its probe.
    Of the trials that cannot be told from the fastest one shown, a changed setting has to win EACH_CHANGE; then the one with
    less memory wins. Where the baseline does not fit, its substitute takes its place; where neither runs, all that was measured
    counts as shown.
    """
    able = _competing(trials)
    baseline = _compared(able, trials)
    if baseline is None:
        return _simplest(able, able, trials, objective)
    better = [trial for trial in able if trial is not baseline and is_better(trial, baseline, objective)]
    return _simplest(better, able, trials, objective) or baseline


def leader(trials: Sequence[Trial], objective: str) -> Trial | None:
    """The trial that others have to beat while the search runs, shown to be better than the baseline or not yet.

    or None. One that learns differently leads only if it is shown to be faster.
    """
    able = _able(trials)
    speeds = _speeds(able)
    baseline = compared_with(trials)

    def is_proven(trial: Trial) -> bool:
        if baseline is None or not learning_differences(trial.configuration, baseline.configuration):
            return True
        gain = speed_up(trial, baseline, objective)
        return gain is None or gain.low > 1

    return max(filter(is_proven, able), key=lambda trial: speeds[trial.number], default=None)


def _able(trials: Sequence[Trial]) -> list[Trial]:
    return [
        trial
        for trial in trials
        if trial.feasible and not trial.measurement.ended_early and not trial.disqualified_reason
    ]


def _competing(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that may win: those that are shown against the baseline, if there are any; else all."""
    able = _able(trials)
    baseline = _compared(able, trials)
    shown = [trial for trial in able if is_shown(trial, baseline)]
    return shown if any(trial is not baseline for trial in shown) else able


def _compared(able: Sequence[Trial], trials: Sequence[Trial]) -> Trial | None:
    """The trial with which others are compared; None if it is not among these."""
    baseline = compared_with(trials)
    return next((trial for trial in able if baseline is not None and trial.number == baseline.number), None)


def is_shown(trial: Trial, baseline: Trial | None) -> bool:
    """True if it is proven how many times as fast as the baseline the trial is.

    Both were measured side by side in time, often enough. Of the baseline itself there is nothing to prove; if it does not
    run, true if the trial was measured again.
    """
    if baseline is None or not baseline.feasible:
        return trial.confirmed
    is_itself = trial.number == baseline.number
    return trial.feasible and (is_itself or _claim(_timed(trial), _timed(baseline)) is not None)


def beside_the_baseline(trial: Trial, baseline: Trial) -> tuple[int, int]:
    """Numbers of measurements of the trial and of the baseline that are side by side in time."""
    from autotune.sampler.claim import side_by_side

    mine, its = side_by_side(_timed(trial), _timed(baseline))
    return len(mine), len(its)


def _timed(trial: Trial) -> tuple[Observation, ...]:
    """The trial's timed measurements."""
    seen = (observed(trial.configuration, measured) for measured in trial.measurements)
    return tuple(observation for observation in seen if observation.step_s is not None)


@lru_cache(1024)
def _claim(above: tuple[Observation, ...], below: tuple[Observation, ...]) -> Ratio | None:
    """The claim from these; it takes milliseconds, and a report asks for each many times."""
    from autotune.sampler.claim import claim

    return claim(above, below)


def is_better(trial: Trial, baseline: Trial, objective: str) -> bool:
    """True if the trial is shown to be better than the baseline: surely (97.5 %) faster, or leaner and as fast.

    What is only leaner has to learn alike and its speed to be proven, because a single probe's interval does not cover what
    differs between two processes.
    """
    gain = speed_up(trial, baseline, objective)
    if gain is None:
        return False
    if gain.low > 1:
        return True
    is_as_fast = not is_open(gain) and gain >= 1 - SAME_SPEED
    learns_alike = not learning_differences(trial.configuration, baseline.configuration)
    return is_as_fast and is_shown(trial, baseline) and learns_alike and _is_leaner(trial, baseline)


def _is_leaner(trial: Trial, baseline: Trial) -> bool:
    """True if each of its measurements needed less memory, by SAME_MEMORY, than any of the baseline's."""
    peaks, others = ([m.peak_bytes or 0 for m in each.measurements if m.feasible] for each in (trial, baseline))
    return all(peaks) and max(peaks) <= (1 - SAME_MEMORY) * min(others)


def changes(trial: Trial, trials: Sequence[Trial]) -> int:
    """Number of the user's settings that the trial changes; 0 without a baseline among the trials, in whatever order."""
    baseline = next((trial for trial in trials if trial.number == 0), None)
    if baseline is None:
        return 0
    values, before = trial.configuration.values, baseline.configuration.values
    return sum(before.get(name) != value for name, value in values.items())


def _simplest(better: Sequence[Trial], able: Sequence[Trial], trials: Sequence[Trial], objective: str) -> Trial | None:
    """The fastest of the trials that cannot be told from the best of `better`.

    Less EACH_CHANGE for each changed setting, then with less memory.
    """
    if not better:
        return None
    speeds = _speeds(able)
    fastest = max(better, key=lambda trial: speeds[trial.number])
    ahead = {trial.number: speed_ratio(fastest, trial, objective) for trial in better if trial is not fastest}
    equal = [t for t in better if t is fastest or (ahead[t.number].low <= 1 and ahead[t.number] <= 1 + SAME_SPEED)]
    net = {trial.number: speeds[trial.number] * (1 - EACH_CHANGE * changes(trial, trials)) for trial in equal}
    simplest = max(equal, key=lambda trial: net[trial.number])
    equal = [trial for trial in equal if changes(trial, trials) == changes(simplest, trials)]
    least = min(trial.peak_bytes or 0 for trial in equal)
    lean = [trial for trial in equal if (trial.peak_bytes or 0) <= (1 + SAME_MEMORY) * least]
    return max(lean, key=lambda trial: speeds[trial.number])


def round_speeds(trial: Trial, objective: str) -> dict[int, float]:
    """The number of each round that the trial completed -> its speed there."""
    rates = {
        number: speed(measured, objective) for number, measured in zip(trial.rounds, trial.confirmations, strict=True)
    }
    return {number: float(rate) for number, rate in rates.items() if rate}


def round_ratio(above: Trial, below: Trial, objective: str) -> Ratio:
    """Speed over speed with its interval: round by round if both were confirmed in the same ones, else of the means.

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


def speed_ratio(above: Trial, below: Trial, objective: str) -> Ratio:
    """Speed over speed with its interval: by the measurements that are side by side in time, else probe over probe."""
    shown = _claim(_timed(above), _timed(below))
    if shown is not None:
        return shown
    rate, base_rate = speed(above.measurement, objective), speed(below.measurement, objective)
    assert rate is not None
    assert base_rate is not None
    return quotient_of_means(rate, base_rate)


def _speeds(trials: Sequence[Trial]) -> dict[int, float]:
    """Number -> how fast a trial is by all its measurements, in a unit that all of these share."""
    timed = {trial.number: _timed(trial) for trial in trials}
    timed = {number: measured for number, measured in timed.items() if measured}
    return dict.fromkeys((trial.number for trial in trials), 0.0) | dict(
        zip(timed, _speeds_of(*timed.values()), strict=True)
    )


@lru_cache(64)
def _speeds_of(*measured: tuple[Observation, ...]) -> list[float]:
    """The speeds from these; a search asks several times between two measurements."""
    from autotune.sampler.claim import speeds

    return speeds(measured)


def is_open(gain: Interval) -> bool:
    """True if a speed-up tells neither that the trial is faster than the baseline nor that it is as fast."""
    return gain.low <= 1 and (gain.high < 1 or gain.relative_width > SPEED_UP_WIDTH)


def disqualified(trials: Sequence[Trial], objective: str) -> list[tuple[Trial, str]]:
    """Trials that were faster than the best one and did not win, with the reason.

    What was measured again first, then by speed.
    """
    best, competing = best_trial(trials, objective), _competing(trials)
    baseline = _compared(competing, trials)
    rivals = []
    for trial in trials:
        if not trial.feasible or trial.measurement.ended_early or trial is best:
            continue
        if best is not None and speed_ratio(trial, best, objective) <= 1:
            continue
        gain = speed_up(trial, baseline, objective) if baseline is not None else None
        if trial.disqualified_reason:
            rivals.append((trial, trial.disqualified_reason))
        elif gain is not None and is_open(gain) and gain.high >= 1 and trial in competing:
            rivals.append((trial, "it cannot be told to be faster"))
    return sorted(rivals, key=lambda pair: (not pair[0].confirmed, -float(speed(pair[0].final, objective) or 0.0)))


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Feasible trials that no other beats in both speed and peak memory, fastest first."""
    able = [t for t in trials if t.feasible and not t.disqualified_reason and t.samples_per_second and t.peak_bytes]
    able.sort(key=lambda t: (-t.samples_per_second.value, t.peak_bytes))  # type: ignore[union-attr]
    front: list[Trial] = []
    for trial in able:
        if not front or (trial.peak_bytes or 0) < (front[-1].peak_bytes or 0):
            front.append(trial)
    return front


def speed_up(best: Trial, baseline: Trial, objective: str) -> Ratio | None:
    """Speed divided by the baseline's, with its interval; None if one of them has no speed."""
    above, below = speed(best.final, objective), speed(baseline.final, objective)
    if not baseline.feasible or above is None or below is None:
        return None
    return Ratio(1.0, 1.0, 1.0) if best.number == baseline.number else speed_ratio(best, baseline, objective)


def fastest_so_far(trials: Sequence[Trial]) -> Trial | None:
    """The fastest trial that may win, shown to be faster or not."""
    able = _able(trials)
    speeds = _speeds(able)
    return max(able, key=lambda trial: speeds[trial.number], default=None)


def displayed_speedup(trial: Trial, baseline: Trial, objective: str) -> Ratio | None:
    """Speed divided by the baseline's, to show while a search runs.

    None if noise hides it (its interval is wider than MAX_DISPLAY_WIDTH).
    """
    gain = speed_up(trial, baseline, objective)
    return gain if gain is not None and gain.relative_width <= MAX_DISPLAY_WIDTH else None
