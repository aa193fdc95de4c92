"""Policy of a search: the one measurement whose expected gain for the training that follows is largest for its seconds.

    new        a configuration that was not measured: it may beat the winner
    compare    one that was: another measurement may show that it, not the winner, is the fastest
    prove      the winner or the baseline, side by side in time: how many times as fast the winner is has to be shown, else
               the user keeps the settings that he has

All measurements, first ones and repeated ones, are observations of one model (sampler/cost_model.py), the machine's drift
among them. A comparison is worth the expected gain in the speed of what would be handed out (knowledge gradient: Frazier, Powell
and Dayanik, 2009; of the best number of repeats a second: Frazier and Powell, 2010), times the seconds of the training.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.core import Configuration
from autotune.core.interval import Ratio
from autotune.sampler.acquisition import (
    CONFIDENCE,
    FIRST_PROBES,
    HARDLY,
    P_FIT_CERTAIN,
    P_FIT_LIKELY,
    P_FIT_RISKY,
    RIVALS,
    _Aim,
    _believed,
    _descending,
    _max_gains,
    _slowest,
    _with_promising,
    run_seconds,
)
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import Costs, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.observation import Observation
from autotune.sampler.scales import together

REPEATS = (1, 2, 4)
"""Numbers of repeats that a measurement is judged by: one alone may tell nothing of what several do."""

CHANGE = 0.001
"""Share of the speed that each changed setting has to win."""

SAME_MEMORY = 0.05
"""Peaks that differ by less than this share are no reason to take the slower of two."""

BESIDE = 3
"""Measurements of the winner and of the baseline are side by side if they are at most so many places apart in time."""

EACH = 2
"""Measurements of the winner and the baseline side by side that a claim needs of each."""

MOST_PROOF = 16
"""Measurements that a proof is foreseen to take at the most."""

SLACK = 1.1
"""Seconds that a proof may take, as a multiple of those that it is expected to."""

PROVING = 0.2
"""Share of a limited time that is kept for a proof until something is worth proving."""


class Why(StrEnum):
    """What a measurement is for."""

    NEW = "new"
    COMPARE = "compare"
    PROVE = "prove"


class End(StrEnum):
    """Why nothing is measured any more."""

    ALL = "all"  # all configurations are measured or ruled out
    GAIN = "gain"  # nothing is expected to win more than the margin
    WORTH = "worth"  # nothing is worth its seconds
    TIME = "time"  # what is worth its seconds does not end in time
    PROBES = "probes"  # no new configuration may be measured


@dataclass(frozen=True)
class Choice:
    """The measurement to make next, or why there is none; gains are shares of the winner's speed (or memory, the objective)."""

    configuration: Configuration | None
    why: Why | None  # None: nothing is measured any more
    end: End | None  # None: something is
    winner: Configuration | None  # what would be handed out if it were proven; None: nothing fits
    claim: Ratio | None  # how many times as fast as the baseline the winner is shown to be; None: not known yet
    gain: float = 0.0  # expected of this measurement
    seconds: float = 0.0  # it is expected to take
    fits: float = 1.0  # probability that it fits
    risky: bool = False  # whether it is tried although it may not fit
    max_gain: float = math.inf  # of untried ones that are likely to fit, with 95 % confidence
    max_gain_if_fits: float = math.inf  # the same of all untried ones, in draws in which they fit
    untried: int = 0  # configurations considered


def choose(
    model: CostModel,
    measurements: Sequence[Observation],
    *,
    implied: Callable[[Configuration], bool] = lambda configuration: False,
    objective: str = "samples_per_second",
    at_s: float | None = None,
    seconds_left: float = math.inf,
    run_s: float | None = None,
    running: Collection[Configuration] = (),
    disqualified: Collection[Configuration] = (),
    risks: int = 0,
    probes_left: int | None = None,
    margin: float = 0.01,
    seed: int = 0,
) -> Choice:
    """The measurement to make next.

    measurements: all that ended, in the order of their time. implied: whether they rule out a configuration. at_s: the time now,
    on the clock of Observation.started_s. seconds_left: of the time limit. run_s: seconds of the training that follows; None: as
    the model's training steps say, else an hour. running: what other workers measure now, assumed to end as expected.
    disqualified: what cannot win. risks: how many tries of what may not fit are left. probes_left: how many configurations may
    still be measured first; None: any number. margin: a share of the speed that is not worth a measurement.
    """
    costs = model.costs(measurements)
    if running:
        costs = model.costs([*measurements, *(_believed(model, costs, one) for one in running)])
    aim = _Aim(objective == "memory", costs.allowed_bytes, _slowest(model, measurements))
    state = _State(model, costs, list(measurements), aim, at_s, run_s, frozenset(disqualified))
    tried = list(dict.fromkeys([*(seen.configuration for seen in measurements), *running]))
    untried = np.ones(len(model.configurations), bool)
    untried[[model.place[one] for one in tried]] = False
    winner = state.winner
    likelihood = aim.likelihood(costs)
    bounds = (math.inf, math.inf, math.inf)
    mean, deviation = aim.worth(costs.log_step, costs.peak), aim.deviation(costs)

    def still_open(places: Places) -> Iterator[int]:
        return (place for place in places if not implied(model.configurations[place]))

    rivals: list[list[int]] = [[], [], []]
    if winner is not None:
        optimistic = mean + 2 * deviation
        groups = (
            likelihood >= P_FIT_CERTAIN,
            (likelihood >= P_FIT_LIKELY) & (likelihood < P_FIT_CERTAIN),
            (likelihood >= HARDLY) & (likelihood < P_FIT_LIKELY),
        )
        rivals = [
            list(islice(still_open(_descending(np.flatnonzero(untried & group), optimistic)), RIVALS))
            for group in groups
        ]
        everyone = np.array([place for group in rivals for place in group], np.intp)
        bounds = _max_gains(costs, aim, winner, everyone, likelihood, seed)
    of_certain, of_likely, of_any = bounds
    known = Choice(
        None,
        None,
        None,
        None if winner is None else model.configurations[winner],
        state.claim,
        max_gain=of_likely,
        max_gain_if_fits=of_any,
        untried=int(untried.sum()),
    )

    def ended(end: End) -> Choice:
        return replace(known, end=end)

    def measure(place: int, why: Why, gain: float, risky: bool = False) -> Choice:
        return replace(
            known,
            configuration=model.configurations[place],
            why=why,
            gain=gain,
            seconds=float(costs.probe_seconds[place]),
            fits=float(likelihood[place]) if why is Why.NEW else 1.0,
            risky=risky,
        )

    may_be_new = probes_left is None or probes_left > 0
    if winner is None:
        return _until_something_fits(model, mean, likelihood, untried, tried, still_open, measure, ended, may_be_new)
    # The most promising configuration is tried, whatever time that leaves.
    in_time = seconds_left - (state.reserved(seconds_left) if len(tried) > 1 else 0.0)
    action: tuple[float, int, Why, float, bool] | None = None  # score, place, why, gain, risky
    out_of_time = False
    able = state.able
    candidates = [rivals[0], rivals[1]]
    if risks:
        candidates.append([place for place in rivals[2] if likelihood[place] >= P_FIT_RISKY])
    everyone = np.array([*able, *(place for group in candidates for place in group)], np.intp)
    gains, scores = state.gains(everyone, len(able), likelihood)
    at = len(able)
    first = len(tried) < FIRST_PROBES and model.training_steps is None
    for tier, group in enumerate(candidates if may_be_new else []):
        own = slice(at, at + len(group))
        at += len(group)
        bound = (of_certain, of_likely, math.inf)[tier]
        places = np.array(group, np.intp)
        seconds = costs.probe_seconds[places]
        order = scores[own].copy()
        if len(tried) == 1:
            order = np.exp(mean[places] - deviation[places] - mean[winner]) * likelihood[places]
        worth = (scores[own] > 1) | first
        worth &= (gains[own] > (1 - CONFIDENCE) * margin) | (bound > margin)
        if tier < 2:
            promising = np.isin(places, _with_promising(model, places, tried))
            if (promising & worth).any():
                worth &= promising
        out_of_time |= bool((worth & (seconds > in_time)).any())
        worth &= seconds <= in_time
        if worth.any():
            best = int(np.flatnonzero(worth)[np.argmax(order[worth])])
            action = float(scores[own][best]), group[best], Why.NEW, float(gains[own][best]), tier == 2
            break
    for index, place in enumerate(able):
        if scores[index] > 1 and model.configurations[place] not in running:
            if costs.probe_seconds[place] > in_time:
                out_of_time = True
            elif action is None or (scores[index] > action[0] and len(tried) >= FIRST_PROBES):
                action = float(scores[index]), place, Why.COMPARE, float(gains[index]), False
    if action is not None:
        _, place, why, gain, risky = action
        return measure(place, why, gain, risky)
    if (proof := state.proof(seconds_left)) is not None:
        place, gain, fits_in_time = proof
        if fits_in_time:
            return measure(place, Why.PROVE, gain)
        out_of_time = True
    if out_of_time:
        return ended(End.TIME)
    if not untried.any() or not any(rivals):
        return ended(End.ALL if not untried.any() else End.GAIN)
    if not may_be_new:
        return ended(End.PROBES)
    return ended(End.GAIN if of_likely <= margin else End.WORTH)


def _until_something_fits(
    model: CostModel,
    mean: Numbers,
    likelihood: Numbers,
    untried: NDArray[np.bool_],
    tried: Sequence[Configuration],
    still_open: Callable[[Places], Iterator[int]],
    measure: Callable[[int, Why, float], Choice],
    ended: Callable[[End], Choice],
    may_be_new: bool,
) -> Choice:
    """The fastest expected of what is likely to fit; if nothing is, the likeliest."""
    if not may_be_new:
        return ended(End.PROBES)
    likely = np.flatnonzero(untried & (likelihood >= P_FIT_CERTAIN))
    if not len(likely):
        likely = np.flatnonzero(untried & (likelihood >= P_FIT_LIKELY))
    likely = _with_promising(model, likely, tried)
    ordered = list(_descending(likely, np.exp(mean - mean.max()) * likelihood))
    others = np.flatnonzero(untried & ~np.isin(np.arange(len(untried)), likely))
    ordered += list(_descending(others, likelihood))
    chosen = next(still_open(np.array(ordered, np.intp)), None)
    return ended(End.ALL) if chosen is None else measure(int(chosen), Why.NEW, math.inf)


class _State:
    """What is known: who would be handed out, how well that is proven, and what measurements would teach."""

    def __init__(
        self,
        model: CostModel,
        costs: Costs,
        measured: list[Observation],
        aim: _Aim,
        at_s: float | None,
        run_s: float | None,
        disqualified: frozenset[Configuration],
    ) -> None:
        self.model, self.costs, self.measured, self.aim, self.at_s = model, costs, measured, aim, at_s
        self.mean = aim.worth(costs.log_step, costs.peak)
        failed = {seen.configuration for seen in measured if not seen.feasible}
        whole = [seen for seen in measured if seen.feasible and not seen.ended_early and seen.step_s is not None]
        self.able = [
            model.place[one]
            for one in dict.fromkeys(seen.configuration for seen in whole)
            if one not in failed and one not in disqualified
        ]
        base = model.place[model.baseline]
        self.base = base if base in self.able else None
        self.timed = [seen for seen in measured if seen.step_s is not None]
        self.where = np.array([model.place[seen.configuration] for seen in self.timed], np.intp)
        fastest = min((float(np.exp(costs.log_step[place])) for place in self.able), default=1.0)
        self.run_s = run_seconds(model.training_steps, fastest) if run_s is None else run_s
        points = model.points
        self.changes = (points.codes != 0).sum(1) + (points.micro != points.micro[base])
        self.worth = self.mean - CHANGE * self.changes
        self.winner = self._winner()
        self.claim = None if self.winner is None else self._claim(self.winner)

    # Who would be handed out ------------------------------------------------------------------------------------

    def needed_s(self, place: int) -> float:
        """Seconds that a proof of this place still needs at the least."""
        if self.base is None or place == self.base:
            return 0.0
        mine, its = self._block(place, True)
        missing = max(0, EACH - len(mine)), max(0, EACH - len(its))
        return missing[0] * self._seconds(place) + missing[1] * self._seconds(self.base)

    def _seconds(self, place: int) -> float:
        return float(self.costs.probe_seconds[place])

    def _winner(self) -> int | None:
        able = [p for p in self.able if self.aim.fast_enough(self.costs.log_step[p])] or self.able
        if not able:
            return None
        net = {place: self.worth[place] - self.needed_s(place) / self.run_s for place in able}
        top = max(able, key=lambda place: net[place])
        equal = [p for p in able if self.changes[p] == self.changes[top] and net[top] - net[p] <= CHANGE]
        least = min(self.costs.peak[place] for place in equal)
        lean = [place for place in equal if self.costs.peak[place] <= (1 + SAME_MEMORY) * least]
        return top if self.aim.of_memory else max(lean, key=lambda place: net[place])

    def difference(self, top: int, others: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Mean and variance of by how much faster (logarithm) this place is than the others."""
        log_steps, _ = self.costs.drawn(np.array([top, *others], np.intp), 400, 0)
        ahead = log_steps[:, 1:] - log_steps[:, :1]
        return self.costs.log_step[list(others)] - self.costs.log_step[top], ahead.var(0)

    # What measurements would teach ------------------------------------------------------------------------------

    def gains(self, places: Places, able: int, likelihood: Numbers) -> tuple[Numbers, Numbers]:
        """(k,) each: the expected gain of measuring each of these, the first `able` of them again, and how many times its seconds
        that is worth."""
        count, winner = len(places), list(places).index(self.winner)
        needed = np.array([self.needed_s(place) for place in places])
        needed[able:] = 0.0 if self.base is None else (2 * EACH - 1) * self._seconds(self.base)
        net = self.worth[places] - needed / self.run_s
        behind = net - max(net[winner], net[:able].max())
        gains = np.zeros((len(REPEATS), count))
        if self.aim.of_memory:
            deviation = self.aim.deviation(self.costs)[places]
            found = expected_improvement(self.mean[places], deviation, float(self.mean[self.winner]))
            gains[:, able:] = found[able:]
        else:
            others = [index for index in range(able) if index != winner]
            for weight, moved in self.costs.taught(places, self.at_s, REPEATS):
                apart = moved - moved[:, :, winner : winner + 1, :]
                deviation = np.sqrt((apart**2).sum(0))  # (repeats, z, x)
                told = np.zeros((len(REPEATS), count))
                if others:
                    told = _improvement(behind[others][None, :, None], deviation[:, others, :]).max(1)
                itself = _improvement(behind[None, :], np.diagonal(deviation, axis1=1, axis2=2))
                itself[:, :able] = 0.0
                gains += weight * np.maximum(told, itself)
        fits = likelihood[places].copy()
        fits[:able] = 1.0
        gains *= fits
        scores = gains * self.run_s / (np.array(REPEATS)[:, None] * self.costs.probe_seconds[places])
        best = scores.argmax(0)
        return gains[best, np.arange(count)], scores.max(0)

    # Proof ------------------------------------------------------------------------------------------------------

    def _block(self, place: int, to_come: bool = False) -> tuple[list[int], list[int]]:
        """Indices of the measurements of this place and of the baseline that are side by side; to_come: or will be."""
        mine, its = np.flatnonzero(self.where == place), np.flatnonzero(self.where == self.base)
        end = len(self.where) - BESIDE

        def kept(some: Places, others: Places) -> list[int]:
            return [int(i) for i in some if (np.abs(others - i) <= BESIDE).any() or (to_come and i >= end)]

        return kept(mine, its), kept(its, mine)

    def _claim(self, place: int) -> Ratio | None:
        """How many times as fast as the baseline the place is shown to be."""
        if self.base is None:
            return None
        if place == self.base:
            return Ratio(1.0, 1.0, 1.0)
        mine, its = self._block(place)
        if min(len(mine), len(its)) < EACH:
            return None
        chosen = [self.timed[index] for index in (*mine, *its)]
        return compared(self.costs, chosen, len(mine))

    def _design(self, mine: Sequence[float | None], its: Sequence[float | None]) -> float:
        """Variance of the claim from measurements of the winner and the baseline at these times."""
        noise = sum(weight * noise**2 for noise, _, weight in self.costs.times.errors)
        drift = sum(weight * drift**2 for _, drift, weight in self.costs.times.errors)
        started = np.array([math.nan if at is None else at for at in (*mine, *its)], float)
        covariance = drift * together(started, started, self.costs.times.clock.spacing) + noise * np.eye(len(started))
        return _contrast(covariance, len(mine))[1]

    def _path(self, place: int, most: int) -> Iterator[tuple[int, float, float]]:
        """A proof's measurements one after the other: (place, seconds until it ends, the claim's variance then)."""
        assert self.base is not None
        pair, at, spent = (place, self.base), self.at_s, 0.0
        block = [[self.timed[index].started_s for index in some] for some in self._block(place, True)]
        last = int(self.where[-1])

        def with_one_more(side: int) -> list[list[float | None]]:
            return [[*times, *([at] if number == side else [])] for number, times in enumerate(block)]

        def preferred(side: int) -> tuple[bool, float, bool]:
            """Whom the claim still lacks, then who makes it surest, then who was not measured just now."""
            lacks = len(block[side]) < EACH <= len(block[1 - side])
            longer = with_one_more(side)
            variance = self._design(*longer) if all(longer) else math.inf
            return not lacks, round(variance, 12), pair[side] == last

        for _ in range(most):
            side = min((0, 1), key=preferred)
            block, last = with_one_more(side), pair[side]
            spent += self._seconds(last)
            at = None if at is None else at + self._seconds(last)
            yield last, spent, self._design(*block) if min(map(len, block)) >= EACH else math.inf

    def proof(self, seconds_left: float) -> tuple[int, float, bool] | None:
        """(next place to measure, expected gain, whether that ends in time) of the winner's proof; None: not worth it, or
        proven."""
        if self.winner is None or self.base is None or self.winner == self.base:
            return None
        if self.claim is not None and (self.claim.low > 1 or self.aim.of_memory):
            return None
        mean, variance = self.difference(self.winner, [self.base])
        ahead, unsure = float(mean[0]), float(variance[0])
        gain = -math.expm1(-ahead) if ahead > 0 else 0.0
        if self.aim.of_memory:
            gain = -float(np.expm1(self.mean[self.base] - self.mean[self.winner]))
        best: tuple[float, int, float] | None = None
        ends_in_time = False
        first: int | None = None
        for place, spent, claimed in self._path(self.winner, MOST_PROOF):
            first = place if first is None else first
            if math.isinf(claimed):
                continue
            proves = float(ndtr((ahead - 1.96 * math.sqrt(claimed)) / math.sqrt(unsure + claimed)))
            proves = 1.0 if self.aim.of_memory else proves
            value = proves * gain * self.run_s - spent
            in_time = spent <= seconds_left
            if value > 0 and (best is None or (in_time, value) > (ends_in_time, best[0])):
                best, ends_in_time = (value, first, proves * gain), in_time
        return None if best is None else (best[1], best[2], ends_in_time)

    def reserved(self, seconds_left: float) -> float:
        """Seconds that other measurements leave for the proof."""
        if math.isinf(seconds_left) or self.base is None or self.winner is None:
            return 0.0
        started = [seen.started_s for seen in self.measured if seen.started_s is not None]
        spent = self.at_s - min(started) if started and self.at_s is not None else 0.0
        if self.winner == self.base:
            wanted = (2 * EACH - 1) * self._seconds(self.base)
            return min(wanted, PROVING * (spent + seconds_left))
        if self.proof(seconds_left) is None:
            return 0.0
        if self.needed_s(self.winner) > seconds_left:
            return 0.0
        # Of what is side by side now the next measurement may leave nothing.
        return SLACK * EACH * (self._seconds(self.winner) + self._seconds(self.base))


def compared(costs: Costs, measured: Sequence[Observation], of_winner: int) -> Ratio:
    """How many times as fast the first `of_winner` measurements are as the others, with the 95 % interval, from these alone.

    Generalised least squares with the machine's drift, over all that measurements may err by (Rasmussen and Williams, 2006,
    section 2.7, without a prior of the means).
    """
    times = np.log([seen.step_s or 1.0 for seen in measured])
    tokens = [seen.tokens for seen in measured]
    if all(tokens):
        times -= np.log(tokens)
    started = np.array([math.nan if seen.started_s is None else seen.started_s for seen in measured], float)
    near = together(started, started, costs.times.clock.spacing)
    means, deviations, weights = [], [], []
    for noise, drift, weight in costs.times.errors:
        contrast, variance = _contrast(drift**2 * near + noise**2 * np.eye(len(times)), of_winner)
        means.append(-float(contrast @ times))
        deviations.append(math.sqrt(variance))
        weights.append(weight)
    mean, deviation, shares = np.array(means), np.array(deviations), np.array(weights) / sum(weights)

    def quantile(share: float) -> float:
        low, high = float((mean - 12 * deviation).min()), float((mean + 12 * deviation).max())
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if shares @ ndtr((middle - mean) / deviation) < share else (low, middle)
        return math.exp((low + high) / 2)

    return Ratio(math.exp(float(shares @ mean)), quantile(0.025), quantile(0.975))


def _contrast(covariance: Numbers, of_first: int) -> tuple[Numbers, float]:
    """(weights, variance) of the estimate of by how much the first ones lie above the others."""
    count = len(covariance)
    design = np.stack([np.ones(count), np.arange(count) < of_first], 1)
    weighed = np.linalg.solve(covariance, design)
    inverse = np.linalg.inv(design.T @ weighed)
    return (inverse @ weighed.T)[1], float(inverse[1, 1])


def _improvement(ahead: Numbers, deviation: Numbers) -> Numbers:
    """Expected improvement, with no deviation too."""
    return expected_improvement(ahead, np.maximum(deviation, 1e-12), 0.0)
