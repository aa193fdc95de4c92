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

SURE, LIKELY = 0.9, 0.65
"""Probability of fitting (and of being as fast as asked, where memory is the objective) from which on a configuration is
probed, and the same once those could win nothing more: a probe that runs out of memory teaches nothing of speed, and is
what people least want to see. While nothing is known to fit, the likeliest is tried."""

RIVALS, DRAWS = 200, 400
"""Untried configurations that could win most, and draws of all their speeds at once, from which the bound is read."""

CONFIDENCE = 0.95
"""Of the statement that nothing untried wins more than the bound."""

BELIEVED = 0.05
"""Noise of what is assumed of a probe that still runs."""


@dataclass(frozen=True)
class Choice:
    """What to probe next, and what that could bring.

    configuration: None where all is known, or nothing untried is likely to fit. could_win: no untried configuration that
    is likely to fit beats the best one by a larger share of its speed (of its memory, where that is the objective), with 95 %
    confidence; infinite while nothing fits. untried: configurations that were considered. expected_win: of this probe, a
    share. probe_seconds: of this probe.
    better: whether it is expected to be better than the best so far.
    """

    configuration: Configuration | None
    could_win: float
    untried: int
    expected_win: float = 0.0
    probe_seconds: float = 0.0
    better: bool = False


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
    margin: float = 0.01,
) -> Choice:
    """The configuration whose probe is expected to win most for each second it takes.

    observations: of every finished probe, the baseline's first. settled: whether a finished probe already answers for a
    configuration. running: what others probe now: its result is assumed to be as expected. margin: what surely fits is
    left for what is likely to fit once it could win no larger share.
    """
    costs = model.costs(observations)
    if running:
        costs = model.costs([*observations, *(_believed(model, costs, one) for one in running)])
    prospects = _prospects(model, costs, observations, objective)
    untried = np.ones(len(model.configurations), bool)
    untried[[model.place[one.configuration] for one in observations]] = False
    untried[[model.place[one] for one in running]] = False
    best = _best(model, prospects, observations, objective)
    sure, places = (np.flatnonzero(untried & (prospects.able >= least)) for least in (SURE, LIKELY))
    # What is said at the end speaks of all that is likely to fit, whichever of it is probed next.
    could_win = _could_win(model, costs, prospects, places, best, settled, objective, seed)
    if len(sure) and _could_win(model, costs, prospects, sure, best, settled, objective, seed) > margin:
        places = sure
    mean, deviation, able = prospects.mean[places], prospects.deviation[places], prospects.able[places]
    ahead = -np.inf if best is None else float(prospects.mean[best])
    if best is None:
        wins = np.exp(mean - mean.max(initial=-np.inf))
    elif len(observations) == 1:
        wins = np.exp(mean - ahead)
    else:
        wins = expected_improvement(mean, deviation, ahead) / costs.probe_seconds[places]
    in_turn = list(places[np.argsort(-wins * able, kind="stable")])
    if best is None:
        rest = np.flatnonzero(untried & (prospects.able < LIKELY))
        in_turn += list(rest[np.argsort(-prospects.able[rest], kind="stable")])
    chosen = next((at for at in in_turn if not settled(model.configurations[at])), None)
    if chosen is None:
        return Choice(None, 0.0, int(untried.sum()))
    win = 0.0
    if best is not None:
        win = float(expected_improvement(prospects.mean[[chosen]], prospects.deviation[[chosen]], ahead)[0])
    return Choice(
        model.configurations[chosen],
        could_win,
        int(untried.sum()),
        win * float(prospects.able[chosen]),
        float(costs.probe_seconds[chosen]),
        best is None or bool(prospects.mean[chosen] > ahead),
    )


def _prospects(model: CostModel, costs: Costs, observations: Sequence[Observation], objective: str) -> _Prospects:
    if objective != "memory":
        return _Prospects(-costs.log_step, costs.deviation, costs.fits)
    able = costs.fits
    if (slowest := _slowest(model, observations)) is not None:
        able = able * ndtr((slowest - costs.log_step) / costs.deviation)
    return _Prospects(-np.log(costs.peak), costs.peak_deviation / costs.peak, able)


def _slowest(model: CostModel, observations: Sequence[Observation]) -> float | None:
    """Logarithm of the step's seconds that an answer with the least memory may take: as the baseline's, within noise."""
    for one in observations:
        if one.configuration == model.baseline and one.step_s is not None and one.feasible:
            return float(np.log(one.step_s)) + one.noise
    return None


def _best(model: CostModel, prospects: _Prospects, observations: Sequence[Observation], objective: str) -> int | None:
    """The place of the best that was measured to its end and fits, by what all measurements say of it together."""
    slowest = _slowest(model, observations) if objective == "memory" else None
    able = [
        model.place[one.configuration]
        for one in observations
        if one.feasible
        and not one.ended_early
        and (slowest is None or one.step_s is None or np.log(one.step_s) <= slowest)
    ]
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
    most = float(np.quantile(np.maximum(wins, 0.0), CONFIDENCE))
    return -float(np.expm1(-most)) if of_memory else float(np.expm1(most))


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
