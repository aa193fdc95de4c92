"""Acquisition: the configuration to probe next, and the largest gain that remains among the untried."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import ndtr

from autotune.core import Configuration, Outcome
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import Costs, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.observation import Observation

P_FIT_CERTAIN, P_FIT_LIKELY = 0.95, 0.8
"""Probability of fitting (and of being fast enough, where memory is the objective) from which on a configuration is probed,
and the same once those leave nothing to gain: a probe that runs out of memory says nothing of speed. Until something fits,
the likeliest is tried."""

P_FIT_RISKY = 0.4
"""Probability of fitting from which on a configuration is tried as a risk, once something fits and nothing safer is worth a
probe: running out of memory costs the seconds of a probe, a slower configuration hours of training."""

RISKS = 2
"""Risky tries of a search at the most."""

RUN_S = 3600.0
"""Seconds of the training to tune for where its steps are not announced: the least that anyone tunes for."""

FIRST_PROBES = 3
"""Probes before which nothing is concluded from a model that was fitted to them."""

FIRST_TRIED = 4
"""Probes, the baseline's among them, within which each setting that is expected to be worth much is tried, whatever is
believed of it: what other models showed may not hold for this one."""

HARDLY = 0.005
"""Probability of fitting below which a configuration is not considered for the bounds."""

RIVALS, DRAWS = 100, 400
"""Untried configurations with the largest possible gains, of those that are likely to fit and of the others; random draws
of all their speeds and peaks together, which give the bounds."""

CONFIDENCE = 0.95
"""That no untried configuration gains more than the bound."""

BELIEVED = 0.05
"""Noise of the assumed result of a running probe."""


@dataclass(frozen=True)
class Proposal:
    """The configuration to probe next, and the gains to expect, as shares of the best's speed (or memory, the objective)."""

    configuration: Configuration | None  # None where all are measured, or nothing untried is likely to fit
    max_gain: float  # of untried ones that are likely to fit, with 95 % confidence; infinite while nothing fits
    max_gain_if_fits: float  # the same of all untried ones, in draws in which they fit
    untried: int  # configurations considered
    expected_gain: float = 0.0  # of this probe
    probe_seconds: float = 0.0  # of this probe
    better: bool = False  # whether it is expected to beat the best so far
    fits: float = 1.0  # probability that it fits
    risky: bool = False  # whether it is tried although it may not fit
    reason: str = ""  # why there is nothing left to propose, of a sampler that knows no gains

    def can_win(self, margin: float) -> bool:
        """Whether more than this share may be left to gain among what is likely to fit, or this probe is a risky try.

        The bound holds in CONFIDENCE of all cases; in the others no more of the margin may be expected.
        """
        return self.risky or self.max_gain > margin or self.expected_gain > (1 - CONFIDENCE) * margin


def propose(
    model: CostModel,
    observations: Sequence[Observation],
    implied: Callable[[Configuration], bool],
    objective: str = "samples_per_second",
    running: Collection[Configuration] = (),
    seed: int = 0,
    margin: float = 0.01,
    measurements: Sequence[Observation] | None = None,
    risks: int = 0,
    probes_left: float = math.inf,
) -> Proposal:
    """The configuration whose probe has the largest expected gain a second.

    observations: of all finished probes, the baseline's first. measurements: the same with each confirmation round apart:
    repeated ones tell noise from what configurations differ by. implied: whether a finished probe already rules out a
    configuration. running: what other workers probe now; assumed to end as expected. margin: certain fits are preferred
    to likely ones while they can gain a larger share. risks: how many tries of what may not fit are left; they come once
    something fits and nothing that is likely to fit is worth its probe. probes_left: that there is time and budget for; with
    few, the settings that are expected to be worth much are tried together.
    """
    measurements = observations if measurements is None else measurements
    costs = model.costs(measurements)
    if running:
        costs = model.costs([*measurements, *(_believed(model, costs, configuration) for configuration in running)])
    aim = _Aim(objective == "memory", costs.allowed_bytes, _slowest(model, observations))
    mean, deviation = aim.worth(costs.log_step, costs.peak), aim.deviation(costs)
    likelihood = aim.likelihood(costs)
    untried = np.ones(len(model.configurations), bool)
    tried = [*(seen.configuration for seen in observations), *running]
    untried[[model.place[configuration] for configuration in tried]] = False
    considered = int(untried.sum())

    def still_open(places: Places) -> Iterator[int]:
        return (place for place in places if not implied(model.configurations[place]))

    best = _best(model, mean, observations, aim)
    bounds = (np.inf, np.inf, np.inf)
    if best is not None:
        optimistic = mean + 2 * deviation
        rivals = [
            place
            for group in (likelihood >= P_FIT_LIKELY, (likelihood < P_FIT_LIKELY) & (likelihood >= HARDLY))
            for place in islice(still_open(_descending(np.flatnonzero(untried & group), optimistic)), RIVALS)
        ]
        bounds = _max_gains(costs, aim, best, np.array(rivals, np.intp), likelihood, seed)
    of_certain, of_likely, of_any = bounds
    incumbent = -np.inf if best is None else float(mean[best])
    gains, worth = np.zeros(len(mean)), np.ones(len(mean), bool)
    if best is not None:
        gains = expected_improvement(mean, deviation, incumbent) * likelihood
        if len(observations) >= FIRST_PROBES and not aim.of_memory:
            step_s = float(np.exp(costs.log_step[best]))
            worth = gains * run_seconds(model.training_steps, step_s) >= costs.probe_seconds
    certain = untried & (likelihood >= P_FIT_CERTAIN)
    is_certain = of_certain > margin and (certain & worth).any()
    places = np.flatnonzero(certain if is_certain else untried & (likelihood >= P_FIT_LIKELY))
    places = _with_promising(model, places, tried, probes_left)
    if best is None:
        order = np.exp(mean - mean.max()) * likelihood
    elif len(observations) == 1:
        order = np.exp(mean - deviation - incumbent) * likelihood  # expected to be best, and not a wild guess
    else:
        order = gains / costs.probe_seconds
    ordered = list(_descending(places, order))
    if best is None:
        untried[places] = False
        ordered += list(_descending(np.flatnonzero(untried), likelihood))
    chosen = next(still_open(np.array(ordered, np.intp)), None)
    risky = False
    if risks and best is not None and len(observations) >= FIRST_PROBES and not aim.of_memory:
        is_safe_left = chosen is not None and worth[chosen]
        if not is_safe_left or (of_likely <= margin and gains[chosen] <= (1 - CONFIDENCE) * margin):
            places = np.flatnonzero(untried & worth & (likelihood >= P_FIT_RISKY) & (likelihood < P_FIT_LIKELY))
            risk = next(still_open(_descending(places, order)), None)
            chosen, risky = (chosen, False) if risk is None else (risk, True)
    if chosen is None:
        return Proposal(None, of_likely, of_any, considered)
    return Proposal(
        model.configurations[chosen],
        of_likely,
        of_any,
        considered,
        float(gains[chosen]),
        float(costs.probe_seconds[chosen]),
        best is None or bool(mean[chosen] > incumbent),
        float(likelihood[chosen]),
        risky,
    )


def run_seconds(training_steps: int | None, step_s: float) -> float:
    """Seconds of the run to tune for, at this step's."""
    return RUN_S if training_steps is None else training_steps * step_s


def _with_promising(
    model: CostModel, places: Places, tried: Sequence[Configuration], probes_left: float = math.inf
) -> Places:
    """Of these places those that try as many settings that are expected to be worth much as the first probes have to."""
    left = min(FIRST_TRIED - len(tried), max(1, probes_left))
    codes = model.points.codes
    before = codes[[model.place[configuration] for configuration in tried]]
    missing = [(column, code) for column, code in model.promising if not (before[:, column] == code).any()]
    if left < 1 or not missing or not len(places):
        return places
    counts = np.sum([codes[places, column] == code for column, code in missing], 0)
    chosen: Places = places[counts >= min(math.ceil(len(missing) / left) if len(missing) >= left else 0, counts.max())]
    return chosen


@dataclass(frozen=True)
class _Aim:
    """The objective as a logarithm, larger is better, and its constraints."""

    of_memory: bool
    allowed_bytes: int
    slowest: float | None  # logarithm of the longest step's seconds where memory is the objective; None: any

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
        likelihood: Numbers = costs.fits * ndtr((self.slowest - costs.log_step) / costs.deviation)
        return likelihood


def _slowest(model: CostModel, observations: Sequence[Observation]) -> float | None:
    """Logarithm of the baseline's step seconds and its noise."""
    for seen in observations:
        if seen.configuration == model.baseline and seen.step_s is not None and seen.feasible:
            return float(np.log(seen.step_s)) + seen.noise
    return None


def _best(model: CostModel, mean: Numbers, observations: Sequence[Observation], aim: _Aim) -> int | None:
    """The place of the best fully measured configuration that fits, by the posterior mean."""
    places = [
        model.place[seen.configuration]
        for seen in observations
        if seen.feasible and not seen.ended_early and (seen.step_s is None or aim.fast_enough(np.log(seen.step_s)))
    ]
    return max(places, key=lambda place: mean[place], default=None)


def _max_gains(
    costs: Costs, aim: _Aim, best: int, rivals: Places, likelihood: Numbers, seed: int
) -> tuple[float, float, float]:
    """Upper bounds of the rivals' gains, as shares: of those that certainly fit, of those likely to, of all."""
    if not len(rivals):
        return 0.0, 0.0, 0.0
    log_step, peak = costs.drawn(np.array([best, *rivals], np.intp), DRAWS, seed)
    worth = aim.worth(log_step, peak)
    gains = np.where(aim.counts(log_step, peak)[:, 1:], worth[:, 1:] - worth[:, :1], 0.0)

    def bound(least: float) -> float:
        most = float(np.quantile(gains[:, likelihood[rivals] >= least].max(1, initial=0.0), CONFIDENCE))
        return -float(np.expm1(-most)) if aim.of_memory else float(np.expm1(most))

    return bound(P_FIT_CERTAIN), bound(P_FIT_LIKELY), bound(0.0)


def _descending(places: Places, by: Numbers) -> Places:
    return places[np.argsort(-by[places], kind="stable")]


def _believed(model: CostModel, costs: Costs, configuration: Configuration) -> Observation:
    """The observation that is expected of a running probe."""
    place = model.place[configuration]
    optimizer = float(np.exp(costs.log_optimizer_step[place]))
    step = configuration.gradient_accumulation_steps * float(np.exp(costs.log_micro_step[place])) + optimizer
    return Observation(configuration, Outcome.COMPLETED, step, optimizer, noise=BELIEVED)
