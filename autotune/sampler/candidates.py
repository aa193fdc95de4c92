"""Which configurations of a space are considered: all of them, or of a large space those that matter and some by chance."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from autotune.core.configuration import Configuration, Value
from autotune.sampler.prior import Effect, Prior
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, Work

POOL = 5000
"""Configurations that are considered at the most."""


ROOM = {1: 1 / 2, 2: 3 / 4}
"""How full the pool may be of neighbours so many settings away."""


def pool(
    parts: Sequence[SearchSpace],
    needed: Sequence[Configuration],
    near: Sequence[Configuration],
    prior: Prior,
    seed: int,
) -> list[Configuration]:
    """The configurations of these parts of a space to consider, the needed ones among them.

    Of parts that hold more than 5,000 together, each has its share: the neighbours, one and two settings away, of `near` and
    of what the prior expects to be fastest at each micro-batch size (one setting), up to three quarters; the rest by chance.
    """
    chosen = dict.fromkeys(needed)
    for at, part in enumerate(parts, 1):
        room = POOL * at // len(parts) - (len(chosen) if at > 1 else 0)
        chosen |= dict.fromkeys(part) if part.size <= room else _some(part, [*chosen], room, near, prior, seed)
    return list(chosen)


def _some(
    space: SearchSpace,
    chosen_before: Sequence[Configuration],
    room: int,
    near: Sequence[Configuration],
    prior: Prior,
    seed: int,
) -> dict[Configuration, None]:
    chosen = dict.fromkeys(one for one in chosen_before if one in space)
    expected = list(_expected_best(space, prior))
    chosen |= dict.fromkeys(expected)
    for away in (1, 2):
        for one in (*near, *(expected if away == 1 else ())):
            for neighbour in _neighbours(space, one, away):
                if len(chosen) < ROOM[away] * room:
                    chosen.setdefault(neighbour)
    rng = random.Random(seed)
    for _ in range(10 * room):
        if len(chosen) >= room:
            break
        drawn = {name: rng.choice(values) for name, values in space.values.items()}
        chosen |= dict.fromkeys(_made(space, drawn))
    return chosen


def _expected_best(space: SearchSpace, prior: Prior) -> Iterator[Configuration]:
    """At each micro-batch size, each setting's value with the least expected cost; the baseline's where none is expected."""
    best: dict[str, Value] = {}
    for name, values in space.values.items():
        effects, own = prior.effects.get(name, {}), space.baseline.values[name]
        ordered = sorted(values, key=lambda value: value != own)
        work = prior.work.get(name, {})

        def cost(value: Value, effects: Any = effects, work: Any = work) -> float:
            return float(sum(effects.get(value, Effect())[:2]) + sum(map(math.log, work.get(value, Work()))))

        best[name] = min(ordered, key=cost)
    for size in space.values[MICRO]:
        yield from _made(space, {**best, MICRO: size})


def _neighbours(space: SearchSpace, one: Configuration, away: int) -> Iterator[Configuration]:
    for names in combinations(space.values, away):
        for changed in product(*(space.values[name] for name in names)):
            yield from _made(space, {**one.values, **dict(zip(names, changed, strict=True))})


def _made(space: SearchSpace, values: Mapping[str, Value]) -> Iterator[Configuration]:
    """The configuration of these values, where they can stand beside each other and be proposed."""
    if not space.conflict(values) and (made := space.configuration(values)) in space:
        yield made
