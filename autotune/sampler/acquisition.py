"""Which configuration is worth a probe next, and what any that was not probed could still win."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import ndtr

from autotune.core.configuration import Configuration
from autotune.core.measurement import Outcome
from autotune.sampler.cost_model import CostModel, Costs, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.observation import Observation

P_FIT_CERTAIN, P_FIT_LIKELY = 0.95, 0.8
"""Probability of fitting (and of being as fast as asked, where memory is the objective) from which on a configuration is
probed, and the same once those could win nothing more: a probe that runs out of memory teaches nothing of speed, and is
what people least want to see. While nothing is known to fit, the likeliest is tried."""

HARDLY = 0.005
"""Probability of fitting below which a configuration is no rival."""

RIVALS, DRAWS = 100, 400
"""Untried configurations that could win most, of those that are likely to fit and of the others, and draws of all their
speeds and peaks at once, from which the bounds are read."""

CONFIDENCE = 0.95
"""Of the statement that nothing untried wins more than the bound."""

BELIEVED = 0.05
"""Noise of what is assumed of a probe that still runs."""


@dataclass(frozen=True)
class Proposal:
    """What to probe next, and what that could bring.

    configuration: None where all is known, or nothing untried is likely to fit. could_win: no untried configuration that
    is likely to fit beats the best one by a larger share of its speed (of its memory, where that is the objective), with 95 %
    confidence; infinite while nothing fits. any_could_win: the same of all untried ones, each as far as it may fit after all.
    untried: configurations that were considered. expected_win: of this probe, a share. probe_seconds: of this probe.
    better: whether it is expected to be better than the best so far.
    """

    configuration: Configuration | None
    max_gain_if_fits: float
    max_gain: float
    untried: int
    expected_gain: float = 0.0
    probe_seconds: float = 0.0
    better: bool = False


def propose(
    model: CostModel,
    observations: Sequence[Observation],
    settled: Callable[[Configuration], bool],
    objective: str = "samples_per_second",
    running: Collection[Configuration] = (),
    seed: int = 0,
    margin: float = 0.01,
) -> Proposal:
    """The configuration whose probe is expected to win most for each second it takes.

    observations: of every finished probe, the baseline's first. settled: whether a finished probe already answers for a
    configuration. running: what others probe now: its result is assumed to be as expected. margin: what surely fits is
    left for what is likely to fit once it could win no larger share.
    """
    costs = model.costs(observations)
    if running:
        costs = model.costs([*observations, *(_believed(model, costs, one) for one in running)])
    aim = _Aim(objective == "memory", costs.allowed_bytes, _slowest(model, observations))
    mean, deviation = aim.worth(costs.log_step, costs.peak), aim.deviation(costs)
    able = aim.likelihood(costs)
    untried = np.ones(len(model.configurations), bool)
    untried[[model.place[one.configuration] for one in observations]] = False
    untried[[model.place[one] for one in running]] = False

    considered = int(untried.sum())

    def still_open(places: Places) -> Iterator[int]:
        return (at for at in places if not settled(model.configurations[at]))

    best = _best(model, mean, observations, aim)
    bounds = (np.inf, np.inf, np.inf)
    if best is not None:
        optimistic = mean + 2 * deviation
        rivals = [
            at
            for group in (able >= P_FIT_LIKELY, (able < P_FIT_LIKELY) & (able >= HARDLY))
            for at in islice(still_open(_descending(np.flatnonzero(untried & group), optimistic)), RIVALS)
        ]
        bounds = _max_gain_if_fits(costs, aim, best, np.array(rivals, np.intp), able, seed)
    of_sure, of_likely, of_any = bounds
    places = np.flatnonzero(untried & (able >= (P_FIT_CERTAIN if of_sure > margin else P_FIT_LIKELY)))
    if not len(places):
        places = np.flatnonzero(untried & (able >= P_FIT_LIKELY))
    ahead = -np.inf if best is None else float(mean[best])
    if best is None:
        wins = np.exp(mean - mean.max())
    elif len(observations) == 1:
        wins = np.exp(mean - deviation - ahead)  # what is expected to be best and is no wild guess
    else:
        wins = expected_improvement(mean, deviation, ahead) / costs.probe_seconds
    in_turn = list(_descending(places, wins * able))
    if best is None:
        untried[places] = False
        in_turn += list(_descending(np.flatnonzero(untried), able))
    chosen = next(still_open(np.array(in_turn, np.intp)), None)
    if chosen is None:
        return Proposal(None, of_likely, of_any, considered)
    win = float(expected_improvement(mean[[chosen]], deviation[[chosen]], ahead)[0]) if best is not None else 0.0
    return Proposal(
        model.configurations[chosen],
        of_likely,
        of_any,
        considered,
        win * float(able[chosen]),
        float(costs.probe_seconds[chosen]),
        best is None or bool(mean[chosen] > ahead),
    )


@dataclass(frozen=True)
class _Aim:
    """What makes one configuration better than another: a logarithm, larger is better; and what it must hold to.

    slowest: logarithm of the step's seconds that an answer with the least memory may take; None: any.
    """

    of_memory: bool
    allowed_bytes: int
    slowest: float | None

    def worth(self, log_step: Numbers, peak: Numbers) -> Numbers:
        return -np.log(np.maximum(peak, 1.0)) if self.of_memory else -log_step

    def deviation(self, costs: Costs) -> Numbers:
        return costs.peak_deviation / costs.peak if self.of_memory else costs.deviation

    def fast_enough(self, log_step: Numbers) -> Any:
        return True if not self.of_memory or self.slowest is None else log_step <= self.slowest

    def counts(self, log_step: Numbers, peak: Numbers) -> Any:
        return (peak <= self.allowed_bytes) & self.fast_enough(log_step)

    def likelihood(self, costs: Costs) -> Numbers:
        if not self.of_memory or self.slowest is None:
            return costs.fits
        likely: Numbers = costs.fits * ndtr((self.slowest - costs.log_step) / costs.deviation)
        return likely


def _slowest(model: CostModel, observations: Sequence[Observation]) -> float | None:
    """As slow as the baseline, within noise."""
    for one in observations:
        if one.configuration == model.baseline and one.step_s is not None and one.feasible:
            return float(np.log(one.step_s)) + one.noise
    return None


def _best(model: CostModel, mean: Numbers, observations: Sequence[Observation], aim: _Aim) -> int | None:
    """The place of the best that was measured to its end and fits, by what all measurements say of it together."""
    able = [
        model.place[one.configuration]
        for one in observations
        if one.feasible and not one.ended_early and (one.step_s is None or aim.fast_enough(np.log(one.step_s)))
    ]
    return max(able, key=lambda at: mean[at], default=None)


def _max_gain_if_fits(
    costs: Costs, aim: _Aim, best: int, rivals: Places, able: Numbers, seed: int
) -> tuple[float, float, float]:
    """What no rival wins more than, a share: of those that surely fit, of those likely to, of all."""
    if not len(rivals):
        return 0.0, 0.0, 0.0
    log_step, peak = costs.drawn(np.array([best, *rivals], np.intp), DRAWS, seed)
    worth = aim.worth(log_step, peak)
    wins = np.where(aim.counts(log_step, peak)[:, 1:], worth[:, 1:] - worth[:, :1], 0.0)

    def bound(least: float) -> float:
        most = float(np.quantile(wins[:, able[rivals] >= least].max(1, initial=0.0), CONFIDENCE))
        return -float(np.expm1(-most)) if aim.of_memory else float(np.expm1(most))

    return bound(P_FIT_CERTAIN), bound(P_FIT_LIKELY), bound(0.0)


def _descending(places: Places, by: Numbers) -> Places:
    return places[np.argsort(-by[places], kind="stable")]


def _believed(model: CostModel, costs: Costs, configuration: Configuration) -> Observation:
    at = model.place[configuration]
    optimizer = float(np.exp(costs.log_optimizer_step[at]))
    step = configuration.gradient_accumulation_steps * float(np.exp(costs.log_micro_step[at])) + optimizer
    return Observation(configuration, Outcome.COMPLETED, step, optimizer, noise=BELIEVED)
