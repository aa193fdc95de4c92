"""Attribution: from the baseline to the answer one setting at a time, the answer without each, and what each is worth.

baseline ──setting──> node ──setting──> node ──settings that fit only together──> answer     gains multiply to the speed-up
                                            answer without each setting ──setting──> answer     taken back alone
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from autotune.core.configuration import RANKS, Configuration, Value
from autotune.core.interval import Interval, quotient_interval
from autotune.core.measurement import ROUNDS_THAT_TELL
from autotune.core.trial import Trial
from autotune.space.settings import MICRO, SETTINGS
from autotune.study.objective import quotient, speed

MOST_TRIED = 12
"""Configurations that are tried for one leg of the path; where none of them runs, all settings left are one leg."""

Taken = frozenset[str]
"""Settings that have the answer's values already."""


@dataclass(frozen=True)
class PathStep:
    """A part of the path: settings that change together between two configurations that were measured.

    gain: speed after / speed before, with its 95 % interval; None where the one before has no speed.
    """

    settings: tuple[str, ...]
    before: Trial
    after: Trial
    gain: Interval | None


@dataclass(frozen=True)
class Ablation:
    """The answer without one setting.

    also: settings that mean nothing without it and go back with it. without: the trial of that configuration.
    gain: speed of the answer / speed without it, with its 95 % interval; None where it does not run without it.
    """

    setting: str
    also: tuple[str, ...]
    without: Trial
    gain: Interval | None


# Configurations ---------------------------------------------------------------------------------------------------


def differing(baseline: Configuration, answer: Configuration) -> tuple[str, ...]:
    """The settings that the answer sets otherwise than the baseline, those left out that mean nothing in the answer."""
    own, new = baseline.values, answer.values
    names = tuple(name for name in new if new[name] != own.get(name) and _means(name, new))
    # Other ranks need another micro-batch for the same global batch: the two go together.
    return tuple(name for name in names if name != MICRO or RANKS not in names)


def between(baseline: Configuration, answer: Configuration, taken: Collection[str]) -> Configuration:
    """The baseline with the answer's values of these settings; what means nothing there is as in that of the two where it
    means nothing either, so that one training is one configuration."""
    if not taken:
        return baseline
    own, new = baseline.values, answer.values
    together = {*taken, *({MICRO} if RANKS in taken else ())}
    values = {name: (new if name in together else own)[name] for name in new}
    for name in [name for name in values if not _means(name, values)]:
        values[name] = (own if _means(name, new) else new)[name]
    micro = int(values.pop(MICRO))
    return Configuration.exact(answer.global_batch_size, micro, values)


def _means(name: str, values: Mapping[str, Value]) -> bool:
    """Whether a setting means anything beside these values."""
    needs = SETTINGS[name].active_if
    return needs is None or needs[0] not in values or needs[1](values[needs[0]])


# The path ---------------------------------------------------------------------------------------------------------


def ordered(settings: Sequence[str], answer: Trial, without: Mapping[str, Trial], objective: str) -> list[str]:
    """The settings in the order in which the path tries them.

    First those without which the answer does not run: what saves memory must come before what needs it. Then by what the
    answer loses without each in the first round, the largest loss first.
    """
    whole = speed(answer.measurement, objective) or 0.0

    def loss(name: str) -> float:
        left = speed(without[name].measurement, objective) if without[name].measurement.feasible else None
        return whole / left if left else math.inf

    return sorted(settings, key=loss, reverse=True)


def find_path(
    settings: Sequence[str], made: Callable[[Taken], Configuration], runs: Callable[[Configuration], bool]
) -> list[Taken]:
    """Growing sets of settings, from none or the fewest that run to all: each one's configuration runs, the last one's
    unasked. Each adds one setting, the first in the order that runs; several where none runs alone."""
    nothing: Taken = frozenset()
    path = [nothing if runs(made(nothing)) else _further(nothing, settings, made, runs)]
    while len(path[-1]) < len(settings):
        path.append(_further(path[-1], settings, made, runs))
    return path


def _further(
    taken: Taken,
    settings: Sequence[str],
    made: Callable[[Taken], Configuration],
    runs: Callable[[Configuration], bool],
) -> Taken:
    left = [name for name in settings if name not in taken]
    tried = {made(taken)}  # a setting that means nothing yet changes nothing
    for count in range(1, len(left)):
        for chosen in combinations(left, count):
            wanted = taken | set(chosen)
            if (configuration := made(wanted)) in tried:
                continue
            if len(tried) > MOST_TRIED:
                return frozenset(settings)
            tried.add(configuration)
            if runs(configuration):
                return wanted
    return frozenset(settings)


def legs(settings: Sequence[str], path: Sequence[tuple[Taken, Trial]], objective: str) -> tuple[PathStep, ...]:
    """The legs between the trials of the path; one that did not run to its last round is left out, but not the ends."""
    kept = [*path[:1], *(one for one in path[1:-1] if one[1].feasible), *path[1:][-1:]]
    return tuple(
        PathStep(
            tuple(name for name in settings if name in taken - before), below, above, gain_of(above, below, objective)
        )
        for (before, below), (taken, above) in pairwise(kept)
    )


def taken_back(answer: Trial, without: Mapping[str, Trial], objective: str) -> tuple[Ablation, ...]:
    """The answer without each setting, the largest loss first; first of all those without which it does not run."""
    found = [
        Ablation(name, _also(name, answer.configuration, one.configuration), one, gain_of(answer, one, objective))
        for name, one in without.items()
    ]
    return tuple(sorted(found, key=lambda one: math.inf if one.gain is None else float(one.gain), reverse=True))


def _also(setting: str, answer: Configuration, without: Configuration) -> tuple[str, ...]:
    new = without.values
    return tuple(name for name, value in answer.values.items() if new[name] != value and name != setting)


def gain_of(above: Trial, below: Trial, objective: str) -> Interval | None:
    """Speed above / speed below, with its 95 % interval; None where one of them did not run."""
    if not (above.feasible and below.feasible and speed(above.final, objective) and speed(below.final, objective)):
        return None
    return quotient(above, below, objective)


# What the gains come to -------------------------------------------------------------------------------------------


def product(gains: Sequence[Interval | None]) -> float | None:
    """Of the gains; None where one is unknown or there is none."""
    known = [float(gain) for gain in gains if gain is not None]
    return math.prod(known) if known and len(known) == len(gains) else None


def interaction(total: PathStep, backs: Sequence[Ablation], objective: str) -> Interval | None:
    """The product of what the answer loses without each setting, over the total gain; with its interval.

    Above 1: that much is gained only by several together, and lost with each of them; below 1: several gain partly the
    same, and each is missed less where the others stay. total: the leg from the path's first trial to the answer. None
    where something did not run, or with too few rounds.
    """
    if total.gain is None or not backs or any(back.gain is None for back in backs):
        return None
    answer, first, *others = (
        [float(speed(one, objective) or 0.0) for one in trial.confirmations]
        for trial in (total.after, total.before, *(back.without for back in backs))
    )
    if not len(answer) == len(first) >= ROUNDS_THAT_TELL:
        return None
    alone = [math.prod(now / one[turn] for one in others) for turn, now in enumerate(answer)]
    return quotient_interval(alone, [now / then for now, then in zip(answer, first, strict=True)])


def same_rounds(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with as many confirmations as all that ran have: speeds are compared round by round."""
    common = min((len(one.confirmations) for one in trials if one.feasible), default=0)
    return [replace(one, confirmations=one.confirmations[:common]) if one.feasible else one for one in trials]
