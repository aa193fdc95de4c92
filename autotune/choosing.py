"""Which configuration is worth a probe next, and what any that was not probed could still win."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from autotune.configuration import Configuration
from autotune.cost_model import CostModel, Costs, Places
from autotune.gaussian import Numbers, expected_improvement
from autotune.measurement import Outcome
from autotune.observation import Observation

CAUTION = 16.0
"""Power of the probability of fitting in a probe's worth: a probe that runs out of memory costs its time, teaches
nothing of speed, and is what people least want to see."""

POSSIBLE = 0.05
"""Probability of fitting below which nothing is expected of a configuration."""

RIVALS, DRAWS = 200, 400
"""Untried configurations that could win most, and draws of all their speeds at once, from which the bound is read."""

CONFIDENCE = 0.95
"""Of the statement that nothing untried wins more than the bound."""

BELIEVED = 0.05
"""Noise of what is assumed of a probe that still runs."""


@dataclass(frozen=True)
class Choice:
    """What to probe next, and what that could bring.

    configuration: None where nothing is left that could fit. could_win: no untried configuration beats the best one by a
    larger share of its speed (of its memory, where that is the objective), with 95 % confidence; infinite while nothing
    fits. untried: configurations that this speaks of. expected_win: of this probe, a share. probe_seconds: of this probe.
    """

    configuration: Configuration | None
    could_win: float
    untried: int
    expected_win: float = 0.0
    probe_seconds: float = 0.0


@dataclass(frozen=True)
class _Prospects:
    """(n,) mean and deviation of what the objective compares, a logarithm, larger is better; how likely it counts."""

    mean: Numbers
    deviation: Numbers
    able: Numbers


def choose(
    model: CostModel,
    observations: Sequence[Observation],
    settled: Callable[[Configuration], bool],
    objective: str = "samples_per_second",
    running: Collection[Configuration] = (),
    seed: int = 0,
) -> Choice:
    """The configuration whose probe is expected to win most for each second it takes.

    observations: of every finished probe, the baseline's first. settled: whether a finished probe already answers for a
    configuration. running: what others probe now: its result is assumed to be as expected.
    """
    costs = model.costs(observations)
    if running:
        costs = model.costs([*observations, *(_believed(model, costs, one) for one in running)])
    prospects = _prospects(model, costs, observations, objective)
    untried = np.ones(len(model.configurations), bool)
    untried[[model.place[one.configuration] for one in observations]] = False
    untried[[model.place[one] for one in running]] = False
    places = np.flatnonzero(untried & (prospects.able >= POSSIBLE))
    if not len(places):  # all look hopeless: the one that does least
        places = np.flatnonzero(untried)[np.argsort(-prospects.able[untried])][:1]
    best = _best(model, prospects, observations)
    mean, deviation, able = prospects.mean[places], prospects.deviation[places], prospects.able[places]
    if best is None:
        wins = np.exp(mean - mean.max()) if len(places) else mean
    elif len(observations) == 1:
        wins = np.exp(mean - prospects.mean[best])
    else:
        wins = expected_improvement(mean, deviation, float(prospects.mean[best])) / costs.probe_seconds[places]
    order = places[np.argsort(-wins * able**CAUTION, kind="stable")]
    open_ones = (at for at in order if not settled(model.configurations[at]))
    chosen = next(open_ones, None)
    if chosen is None:
        return Choice(None, 0.0, 0)
    ahead = float(prospects.mean[best]) if best is not None else -np.inf
    win = (
        expected_improvement(prospects.mean[[chosen]], prospects.deviation[[chosen]], ahead)[0]
        if best is not None
        else 0.0
    )
    return Choice(
        model.configurations[chosen],
        _could_win(model, costs, prospects, places, best, settled, objective, seed),
        len(places),
        float(win * prospects.able[chosen]),
        float(costs.probe_seconds[chosen]),
    )


def _prospects(model: CostModel, costs: Costs, observations: Sequence[Observation], objective: str) -> _Prospects:
    if objective != "memory":
        return _Prospects(-costs.log_step, costs.deviation, costs.fits)
    able = costs.fits
    first = observations[0] if observations else None
    if first is not None and first.step_s is not None and first.feasible:
        # As fast as the baseline, or it does not count.
        at = model.place[first.configuration]
        able = able * ndtr((costs.log_step[at] + first.noise - costs.log_step) / costs.deviation)
    return _Prospects(-np.log(costs.peak), costs.peak_deviation / costs.peak, able)


def _best(model: CostModel, prospects: _Prospects, observations: Sequence[Observation]) -> int | None:
    """The place of the best that was measured to its end and fits, by what all measurements say of it together."""
    able = [model.place[one.configuration] for one in observations if one.feasible and not one.ended_early]
    return max(able, key=lambda at: prospects.mean[at], default=None)


def _could_win(
    model: CostModel,
    costs: Costs,
    prospects: _Prospects,
    places: Places,
    best: int | None,
    settled: Callable[[Configuration], bool],
    objective: str,
    seed: int,
) -> float:
    if best is None:
        return np.inf
    highest = prospects.mean[places] + 2 * prospects.deviation[places]
    rivals = np.array(list(_first_open(model, places[np.argsort(-highest)], settled)), np.intp)
    if not len(rivals):
        return 0.0
    chosen = np.array([best, *rivals], np.intp)
    of_memory = objective == "memory"
    covariance = np.diag(prospects.deviation[chosen] ** 2) if of_memory else costs.covariance(chosen)
    values, vectors = np.linalg.eigh(covariance)
    rng = np.random.default_rng(seed)
    drawn = rng.standard_normal((DRAWS, len(chosen))) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    drawn += prospects.mean[chosen]
    fits = rng.random((DRAWS, len(rivals))) < prospects.able[rivals]
    wins = np.where(fits, drawn[:, 1:] - drawn[:, :1], 0.0).max(1)
    return float(np.expm1(np.quantile(np.maximum(wins, 0.0), CONFIDENCE)))


def _first_open(model: CostModel, places: Places, settled: Callable[[Configuration], bool]) -> Iterator[int]:
    found = 0
    for at in places:
        if found == RIVALS:
            return
        if not settled(model.configurations[at]):
            found += 1
            yield at


def _believed(model: CostModel, costs: Costs, configuration: Configuration) -> Observation:
    at = model.place[configuration]
    step = float(np.exp(costs.log_step[at]))
    share = float(costs.optimizer_share[at])
    return Observation(configuration, Outcome.COMPLETED, step, step * share, noise=BELIEVED)
