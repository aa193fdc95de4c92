"""Configurations to consider: all of a small space; of a large one the core settings first, then a part of the rest."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from autotune.core.configuration import RANKS, Configuration, Value
from autotune.judge.observation import Observation
from autotune.sampler.constants import BEST, POOL, ROOM
from autotune.sampler.prior import Prior
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, CostChange, WorkFactors


def stages(space: SearchSpace, observations: Sequence[Observation], core_probes: int) -> list[tuple[SearchSpace, ...]]:
    """Parts of the space to consider, by stage: the core settings alone, then the others around the best of these.

    A stage counts once nothing is left to gain in the one before; while nothing fits, the last one is the whole space.
    observations: of all finished probes. core_probes: budget of the first stage. Without core settings there is one stage.
    """
    if not space.core:
        return [(space,)]
    base = space.baseline.values
    core = narrowed(space, {name: base[name] for name in space.values if name not in space.core})
    first = [(core,)] if len(observations) < core_probes else []
    around = [narrowed(space, values) for values in _best_of_core(space, observations)]
    return [*first, (core, *around) if around else (space,)]


def narrowed(space: SearchSpace, fixed: Mapping[str, Value]) -> SearchSpace:
    """The part of the space with only these values, as far as they can be proposed."""
    values = {
        name: (fixed[name],) if name in fixed and fixed[name] in choices else choices
        for name, choices in space.values.items()
    }
    return replace(space, values=values)


def _best_of_core(space: SearchSpace, observations: Sequence[Observation]) -> Iterator[Mapping[str, Value]]:
    """The core settings' values of the best configurations that fit, best first."""
    fitting = [seen for seen in observations if seen.feasible and not seen.ended_early and seen.step_s is not None]
    fitting.sort(key=lambda seen: seen.step_s or 0.0)
    # Ranks that come later need another micro-batch for the same global batch.
    names = [name for name in space.core if name != MICRO or RANKS not in space.values or RANKS in space.core]
    best = dict.fromkeys(tuple(seen.configuration.values[name] for name in names) for seen in fitting)
    return (dict(zip(names, values, strict=True)) for values in list(best)[:BEST])


def pool(
    parts: Sequence[SearchSpace],
    needed: Sequence[Configuration],
    near: Sequence[Configuration],
    prior: Prior,
    seed: int,
) -> list[Configuration]:
    """The configurations of these parts of a space to consider, the needed ones included.

    Parts that hold more than 5,000 together have equal shares, filled with the neighbours, one and two settings away, of
    `near` and (one setting) of the fastest by the prior at each micro-batch size, up to three quarters; then at random.
    """
    chosen = dict.fromkeys(needed)
    for number, part in enumerate(parts, 1):
        room = POOL * number // len(parts) - (len(chosen) if number > 1 else 0)
        chosen |= dict.fromkeys(part) if part.size <= room else _sample(part, [*chosen], room, near, prior, seed)
    return list(chosen)


def _sample(
    space: SearchSpace,
    already: Sequence[Configuration],
    room: int,
    near: Sequence[Configuration],
    prior: Prior,
    seed: int,
) -> dict[Configuration, None]:
    chosen = dict.fromkeys(configuration for configuration in already if configuration in space)
    expected = list(_expected_best(space, prior))
    chosen |= dict.fromkeys(expected)
    for away in (1, 2):
        for center in (*near, *(expected if away == 1 else ())):
            for neighbour in _neighbours(space, center, away):
                if len(chosen) < ROOM[away] * room:
                    chosen.setdefault(neighbour)
    rng = random.Random(seed)
    for _ in range(10 * room):
        if len(chosen) >= room:
            break
        drawn = {name: rng.choice(values) for name, values in space.values.items()}
        chosen |= dict.fromkeys(_valid(space, drawn))
    return chosen


def _expected_best(space: SearchSpace, prior: Prior) -> Iterator[Configuration]:
    """Each micro-batch size with each setting's value of the least expected cost, the baseline's if none is known."""
    base = space.baseline.values

    def cost(name: str, value: Value) -> float:
        effect = prior.effects.get(name, {}).get(value, CostChange())
        learned = prior.learned[name][value].deviation if value in prior.learned.get(name, {}) else CostChange()
        return (
            sum(effect[:2]) + sum(learned[:2]) + sum(map(math.log, prior.work.get(name, {}).get(value, WorkFactors())))
        )

    best = {
        name: min(values, key=lambda value: (cost(name, value), value != base[name]))
        for name, values in space.values.items()
    }
    for size in space.values[MICRO]:
        yield from _valid(space, {**best, MICRO: size})


def _neighbours(space: SearchSpace, center: Configuration, away: int) -> Iterator[Configuration]:
    for names in combinations(space.values, away):
        for changed in product(*(space.values[name] for name in names)):
            yield from _valid(space, {**center.values, **dict(zip(names, changed, strict=True))})


def _valid(space: SearchSpace, values: Mapping[str, Value]) -> Iterator[Configuration]:
    """The configuration of these values, if they can be combined and proposed."""
    if not space.conflict(values) and (configuration := space.configuration(values)) in space:
        yield configuration
