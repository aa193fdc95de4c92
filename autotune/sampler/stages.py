"""What of a space is searched first: its core settings, then all the others around the best of what they gave."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autotune.core.configuration import RANKS, Value
from autotune.sampler.observation import Observation
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO

BEST = 3
"""So many of the core settings' settings are tried with the other settings."""


def stages(
    space: SearchSpace, observations: Sequence[Observation], core_probes: int, objective: str
) -> list[tuple[SearchSpace, ...]]:
    """What to consider, stage after stage, each as parts of the space: the next one counts where nothing is left to win in one.

    Where nothing fits yet, the last one is all of it. observations: of every finished probe. core_probes: that the first
    stage may take. A space without core settings has one stage, all of it.
    """
    if not space.core:
        return [(space,)]
    own = space.baseline.values
    core = narrowed(space, {name: own[name] for name in space.values if name not in space.core})
    first = [(core,)] if len(observations) < core_probes else []
    around = [narrowed(space, dict(one)) for one in _best_of_core(space, observations, objective)]
    return [*first, (core, *around) if around else (space,)]


def narrowed(space: SearchSpace, fixed: Mapping[str, Value]) -> SearchSpace:
    """The part of the space with these values alone, as far as they can be proposed."""
    values = {
        name: (fixed[name],) if name in fixed and fixed[name] in known else known
        for name, known in space.values.items()
    }
    return replace(space, values=values)


def _best_of_core(
    space: SearchSpace, observations: Sequence[Observation], objective: str
) -> list[tuple[tuple[str, Value], ...]]:
    """The core settings' values of the best that fit, best first."""
    able = [one for one in observations if one.feasible and not one.ended_early and one.step_s is not None]
    able.sort(key=lambda one: (one.peak_bytes or 0) if objective == "memory" else (one.step_s or 0.0))
    # Ranks that come later need a micro-batch of their own for the same global batch.
    kept = [name for name in space.core if name != MICRO or RANKS not in space.values or RANKS in space.core]
    settings = (tuple((name, one.configuration.values[name]) for name in kept) for one in able)
    return list(dict.fromkeys(settings))[:BEST]
