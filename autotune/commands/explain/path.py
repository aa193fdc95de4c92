"""Path from the baseline to the answer, one setting a step; and ablations, the answer without one setting.

baseline ──setting──> trial ──setting──> trial ──settings that run only together──> answer     gains multiply to the speed-up
                                         answer without a setting ──setting──> answer          ablation
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from autotune.core.configuration import RANKS, Configuration
from autotune.core.interval import Interval
from autotune.core.trial import Trial
from autotune.judge.objective import round_ratio, speed
from autotune.space.search_space import is_active
from autotune.space.settings import MICRO

MOST_TRIED = 12
"""Configurations that are tried for one step of the path; if none of them runs, all remaining settings are one step."""

Taken = frozenset[str]
"""Settings that have the answer's values."""


@dataclass(frozen=True)
class PathStep:
    """Settings that change together between two measured configurations.

    gain: speed after / speed before, with its 95 % interval; None if one of them has no speed.
    """

    settings: tuple[str, ...]
    before: Trial
    after: Trial
    gain: Interval | None


@dataclass(frozen=True)
class Ablation:
    """The answer without one setting.

    also: settings that are inactive without it, and reset with it. without: the trial of that configuration.
    gain: speed of the answer / speed without it, with its 95 % interval; None if it does not run without it.
    """

    setting: str
    also: tuple[str, ...]
    without: Trial
    gain: Interval | None


# Configurations ---------------------------------------------------------------------------------------------------


def differing(baseline: Configuration, answer: Configuration) -> tuple[str, ...]:
    """Settings whose values differ, without those that are inactive in the answer."""
    old, new = baseline.values, answer.values
    names = tuple(name for name in new if new[name] != old.get(name) and is_active(name, new))
    # Other ranks need another micro-batch for the same global batch: the two go together.
    return tuple(name for name in names if name != MICRO or RANKS not in names)


def between(baseline: Configuration, answer: Configuration, taken: Collection[str]) -> Configuration:
    """The baseline with the answer's values of these settings.

    An inactive setting has the value of the one of the two in which it is inactive too: one training, one configuration.
    """
    if not taken:
        return baseline
    old, new = baseline.values, answer.values
    from_answer = {*taken, *({MICRO} if RANKS in taken else ())}
    values = {name: (new if name in from_answer else old)[name] for name in new}
    for name in [name for name in values if not is_active(name, values)]:
        values[name] = (old if is_active(name, new) else new)[name]
    micro = int(values.pop(MICRO))
    return Configuration.exact(answer.global_batch_size, micro, values)


# The path ---------------------------------------------------------------------------------------------------------


def find_path(
    settings: Sequence[str], configuration_of: Callable[[Taken], Configuration], runs: Callable[[Configuration], bool]
) -> list[Taken]:
    """Growing sets of settings, from none, or the fewest that run, to all (which are not tried).

    Each adds the first setting in order with which it runs, or several if none runs alone.
    """
    taken: Taken = frozenset()
    path = [taken] if runs(configuration_of(taken)) else []
    while len(taken) < len(settings):
        remaining = [name for name in settings if name not in taken]
        tried = {configuration_of(taken)}  # a setting that is still inactive changes nothing
        following = frozenset(settings)
        for added in (names for count in range(1, len(remaining)) for names in combinations(remaining, count)):
            configuration = configuration_of(taken | set(added))
            if configuration in tried:
                continue
            if len(tried) > MOST_TRIED:
                break
            tried.add(configuration)
            if runs(configuration):
                following = taken | set(added)
                break
        taken = following
        path.append(taken)
    return path


def path_steps(settings: Sequence[str], path: Sequence[tuple[Taken, Trial]], objective: str) -> tuple[PathStep, ...]:
    """The steps between the trials of the path, without those that failed in a later round, except at the ends."""
    ran = [*path[:1], *(node for node in path[1:-1] if node[1].feasible), *path[1:][-1:]]
    return tuple(
        PathStep(
            tuple(name for name in settings if name in taken - before), below, above, gain_of(above, below, objective)
        )
        for (before, below), (taken, above) in pairwise(ran)
    )


def ablations(answer: Trial, without: Mapping[str, Trial], objective: str) -> tuple[Ablation, ...]:
    """The answer without each setting: first those without which it does not run, then the largest loss first.

    In this order the path tries the settings: what saves memory must precede what needs it.
    """
    values = answer.configuration.values
    rows = [
        Ablation(
            setting,
            tuple(name for name in values if trial.configuration.values[name] != values[name] and name != setting),
            trial,
            gain_of(answer, trial, objective),
        )
        for setting, trial in without.items()
    ]
    return tuple(sorted(rows, key=lambda row: math.inf if row.gain is None else float(row.gain), reverse=True))


def gain_of(above: Trial, below: Trial, objective: str) -> Interval | None:
    """Speed above / speed below, with its 95 % interval; None if one of them did not run."""
    if not (above.feasible and below.feasible and speed(above.final, objective) and speed(below.final, objective)):
        return None
    return round_ratio(above, below, objective)


# Gains -------------------------------------------------------------------------------------------------------------


def product(gains: Sequence[Interval | None]) -> float | None:
    """Product of the gains; None if one is unknown or there is none."""
    numbers = [float(gain) for gain in gains if gain is not None]
    return math.prod(numbers) if numbers and len(numbers) == len(gains) else None


def same_rounds(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with the rounds that all of those that ran have: speeds are compared round by round."""
    common = min((len(trial.confirmations) for trial in trials if trial.feasible), default=0)
    return [replace(trial, confirmations=trial.confirmations[:common]) if trial.feasible else trial for trial in trials]
