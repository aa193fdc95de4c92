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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import ndtr

from autotune.core import Configuration, Outcome
from autotune.core.interval import Ratio
from autotune.sampler.claim import EACH, beside, claim, contrast_of, errors_of, own_noise
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import Costs, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.observation import Observation
from autotune.sampler.scales import LEAST_WEIGHT, Clock

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


REPEATS = (1, 2, 4)
"""Numbers of repeats that a measurement is judged by: one alone may tell nothing of what several do."""

CHANGE = 0.001
"""Share of the speed that each changed setting has to win."""

SAME_MEMORY = 0.05
"""Peaks that differ by less than this share are no reason to take the slower of two."""

MOST_PROOF = 16
"""Measurements that a proof is foreseen to take at the most."""

COMPARED, PROVEN = 4, 8
"""Measurements of one configuration at the most, as multiples of those that a claim needs: to tell which one is the fastest, and
to prove how much faster it is."""

UNDERRATED = 0.1
"""Share of its seconds that a comparison has to be worth. Its gain counts a single rival and what is told at once, a lower bound:
what several together and further ones tell is several times that."""

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

    configuration: Configuration | None  # None: nothing is measured now
    why: Why | None = None  # None: nothing is measured now
    end: End | None = None  # None: something is, or has to end first
    winner: Configuration | None = None  # what would be handed out if it were proven; None: nothing fits
    claim: Ratio | None = None  # how many times as fast as the baseline the winner is; None: that is not shown
    gain: float = 0.0  # expected of this measurement
    seconds: float = 0.0  # it is expected to take; at the end, of the most promising one that is left out
    fits: float = 1.0  # probability that it fits
    risky: bool = False  # whether it is tried although it may not fit
    max_gain: float = math.inf  # of untried ones that are likely to fit, with 95 % confidence
    max_gain_if_fits: float = math.inf  # the same of all untried ones, in draws in which they fit
    untried: int = 0  # configurations considered
    promising: Configuration | None = None  # at the end: what is untried and expected to be faster than the winner
    reason: str = ""  # why nothing new is proposed, of a sampler that knows no gains


def choose(
    model: CostModel,
    measurements: Sequence[Observation],
    *,
    implied: Callable[[Configuration], bool] = lambda configuration: False,
    objective: str = "samples_per_second",
    at_s: float | None = None,
    device: str = "",
    seconds_left: float = math.inf,
    repeat_seconds: Mapping[Configuration, float] = {},
    run_s: float | None = None,
    running: Mapping[str, Configuration] = {},
    repeats: Sequence[Observation] = (),
    disqualified: Collection[Configuration] = (),
    risks: int = 0,
    probes_left: float = math.inf,
    margin: float = 0.01,
    each: int = EACH,
    seed: int = 0,
) -> Choice:
    """The measurement to make next.

    measurements: all that ended, in the order of their time. implied: whether they rule out a configuration. at_s: the time now,
    on the clock of Observation.started_s. device: that measures next. seconds_left: of the time limit. repeat_seconds: of what
    was measured, if that is not as long as a first measurement. run_s: seconds of the training that follows; None: as the model's
    training steps say, else an hour. running: device -> what is measured there now, assumed to end as expected. repeats: what
    tells how devices differ, and is no part of a claim. disqualified: what cannot win. risks: how many tries of what may not fit
    are left. probes_left: how many configurations may still be measured first. margin: a share of the speed that is not worth a
    measurement. each: measurements of the winner and the baseline side by side that a claim needs.
    """
    costs = model.costs([*measurements, *repeats])
    expected = [_believed(model, costs, each_one, at_s, name) for name, each_one in running.items()]
    if running:
        costs = model.costs([*measurements, *repeats, *expected])
    aim = _Aim(objective == "memory", costs.allowed_bytes, _slowest(model, measurements))
    state = _State(
        model,
        costs,
        measurements,
        expected,
        aim,
        _Now(at_s, device, seconds_left),
        run_s=run_s,
        disqualified=disqualified,
        repeat_seconds=repeat_seconds,
        each=each,
    )
    tried = list(dict.fromkeys([*(seen.configuration for seen in measurements), *running.values()]))
    untried = np.ones(len(model.configurations), bool)
    untried[[model.place[configuration] for configuration in tried]] = False
    winner, likelihood = state.winner, aim.likelihood(costs)
    mean, deviation = aim.worth(costs.log_step, costs.peak), aim.deviation(costs)

    def still_open(places: Places) -> Iterator[int]:
        return (place for place in places if not implied(model.configurations[place]))

    if winner is None:
        if probes_left <= 0:
            return Choice(None, end=End.PROBES, untried=int(untried.sum()))
        likely = untried & (likelihood >= P_FIT_CERTAIN)
        likely = likely if likely.any() else untried & (likelihood >= P_FIT_LIKELY)
        places = _with_promising(model, np.flatnonzero(likely), tried)
        ordered = [*_descending(places, np.exp(mean - mean.max()) * likelihood)]
        untried[places] = False
        ordered += [*_descending(np.flatnonzero(untried), likelihood)]
        chosen = next(still_open(np.array(ordered, np.intp)), None)
        if chosen is None:
            return Choice(None, end=End.ALL)
        return Choice(
            model.configurations[chosen],
            Why.NEW,
            gain=math.inf,
            seconds=float(costs.probe_seconds[chosen]),
            fits=float(likelihood[chosen]),
            untried=len(ordered),
        )
    groups = (
        likelihood >= P_FIT_CERTAIN,
        (likelihood >= P_FIT_LIKELY) & (likelihood < P_FIT_CERTAIN),
        (likelihood >= HARDLY) & (likelihood < P_FIT_LIKELY),
    )
    rivals = [
        list(islice(still_open(_descending(np.flatnonzero(untried & group), mean + 2 * deviation)), RIVALS))
        for group in groups
    ]
    of_certain, of_likely, of_any = _max_gains(
        costs, aim, winner, np.array([place for group in rivals for place in group], np.intp), likelihood, seed
    )
    promising = max([*rivals[0], *rivals[1]], key=lambda place: mean[place], default=None)
    is_better = promising is not None and mean[promising] > mean[winner]
    at_the_end = Choice(
        None,
        winner=model.configurations[winner],
        claim=state.claim,
        seconds=0.0 if promising is None else float(costs.probe_seconds[promising]),
        max_gain=of_likely,
        max_gain_if_fits=of_any,
        untried=int(untried.sum()),
        promising=model.configurations[promising] if is_better and promising is not None else None,
    )

    def measure(place: int, why: Why, gain: float, risky: bool = False) -> Choice:
        return replace(
            at_the_end,
            configuration=model.configurations[place],
            why=why,
            gain=gain,
            seconds=float(costs.probe_seconds[place]) if why is Why.NEW else state.seconds(place),
            fits=float(likelihood[place]) if why is Why.NEW else 1.0,
            risky=risky,
            promising=None,
        )

    # The most promising configuration is tried, whatever time that leaves.
    in_time = seconds_left - (state.reserved() if len(tried) > 1 else 0.0)
    action: tuple[float, int, Why, float, bool] | None = None  # score, place, why, gain, risky
    out_of_time = False
    able = state.able
    candidates = [rivals[0], rivals[1]]
    if risks:
        candidates.append([place for place in rivals[2] if likelihood[place] >= P_FIT_RISKY])
    gains, scores = state.gains(
        np.array([*able, *(place for group in candidates for place in group)], np.intp), len(able), likelihood
    )
    at = len(able)
    first = len(tried) < FIRST_PROBES and model.training_steps is None
    for tier, group in enumerate(candidates if probes_left > 0 else []):
        part = slice(at, at + len(group))
        at += len(group)
        bound = (of_certain, of_likely, math.inf)[tier]
        places = np.array(group, np.intp)
        seconds = costs.probe_seconds[places]
        order = scores[part].copy()
        if len(tried) == 1:
            order = np.exp(mean[places] - deviation[places] - mean[winner]) * likelihood[places]
        worth = (scores[part] > 1) | first | (margin <= 0)
        worth &= (gains[part] > (1 - CONFIDENCE) * margin) | (bound > margin)
        if tier < 2 and len(group):
            left = min(probes_left, in_time // float(np.median(seconds))) if in_time < math.inf else probes_left
            promising_ones = np.isin(places, _with_promising(model, places, tried, left))
            if (promising_ones & worth).any():
                worth &= promising_ones
        out_of_time |= bool((worth & (seconds > in_time)).any())
        worth &= seconds <= in_time
        if worth.any():
            best = int(np.flatnonzero(worth)[np.argmax(order[worth])])
            action = float(scores[part][best]), group[best], Why.NEW, float(gains[part][best]), tier == 2
            break
    for index, place in enumerate(able):
        is_idle = model.configurations[place] not in running.values()
        if scores[index] > UNDERRATED and is_idle and state.may_repeat(place, COMPARED):
            if state.seconds(place) > in_time:
                out_of_time = True
            elif action is None or (scores[index] > action[0] and len(tried) >= FIRST_PROBES):
                action = float(scores[index]), place, Why.COMPARE, float(gains[index]), False
    proof = state.proof()
    comes_first = action is None or (
        len(tried) >= FIRST_PROBES and proof is not None and not state.is_handed_out() and proof.score > action[0]
    )
    if proof is not None and proof.in_time and comes_first:
        return measure(proof.place, Why.PROVE, proof.gain)
    if action is not None:
        _, place, why, gain, risky = action
        return measure(place, why, gain, risky)
    out_of_time |= proof is not None
    if out_of_time:
        end = End.TIME
    elif not untried.any():
        end = End.ALL
    elif not any(rivals):
        end = End.GAIN
    elif probes_left <= 0:
        end = End.PROBES
    else:
        end = End.GAIN if of_likely <= margin else End.WORTH
    return replace(at_the_end, end=end)


@dataclass(frozen=True)
class _Now:
    """When and where the next measurement begins, and the seconds that are left."""

    at_s: float | None
    device: str
    seconds_left: float


@dataclass(frozen=True)
class _Proof:
    """How the winner is proven. place: to measure next. score: how many times its seconds it is worth."""

    place: int
    gain: float
    score: float
    in_time: bool


class _State:
    """Who would be handed out, how well that is proven, and what measurements would teach.

    expected: what is measured now, as it is expected to end.
    """

    def __init__(
        self,
        model: CostModel,
        costs: Costs,
        measured: Sequence[Observation],
        expected: Sequence[Observation],
        aim: "_Aim",
        now: _Now,
        *,
        run_s: float | None,
        disqualified: Collection[Configuration],
        repeat_seconds: Mapping[Configuration, float],
        each: int,
    ) -> None:
        self.model, self.costs, self.measured, self.aim, self.now, self.each = model, costs, measured, aim, now, each
        self.expected, self.repeat_seconds = expected, repeat_seconds
        self.mean = aim.worth(costs.log_step, costs.peak)
        failed = {seen.configuration for seen in measured if not seen.feasible}
        whole = [seen for seen in measured if seen.feasible and not seen.ended_early and seen.step_s is not None]
        self.able = [
            model.place[configuration]
            for configuration in dict.fromkeys(seen.configuration for seen in whole)
            if configuration not in failed and configuration not in disqualified
        ]
        base = model.place[model.baseline]
        self.base = base if base in self.able else None
        fastest = min((float(np.exp(costs.log_step[place])) for place in self.able), default=1.0)
        self.run_s = run_seconds(model.training_steps, fastest) if run_s is None else run_s
        points = model.points
        self.changes = (points.codes != 0).sum(1) + (points.micro != points.micro[base])
        self.worth = self.mean - CHANGE * self.changes
        self.winner = self._winner()
        self.claim = None if self.winner is None else self._claim(self.winner)

    def of(self, place: int | None) -> list[Observation]:
        """The timed measurements of a configuration."""
        return [
            seen for seen in self.measured if seen.step_s is not None and self.model.place[seen.configuration] == place
        ]

    def may_repeat(self, place: int, most: int) -> bool:
        """False if so many measurements of it have not told that more will not."""
        return len(self.of(place)) < most * self.each

    # Who would be handed out ------------------------------------------------------------------------------------

    def needed_s(self, place: int) -> float:
        """Seconds that a proof of this place still needs at the least."""
        if self.base is None or place == self.base:
            return 0.0
        mine, its = self._block(place)
        missing = max(0, self.each - len(mine)), max(0, self.each - len(its))
        return missing[0] * self.seconds(place) + missing[1] * self.seconds(self.base)

    def seconds(self, place: int) -> float:
        """Seconds of measuring it again."""
        return self.repeat_seconds.get(self.model.configurations[place], float(self.costs.probe_seconds[place]))

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
        needed[able:] = 0.0 if self.base is None else (2 * self.each - 1) * self.seconds(self.base)
        net = self.worth[places] - needed / self.run_s
        behind = net - max(net[winner], net[:able].max())
        gains = np.zeros((len(REPEATS), count))
        if self.aim.of_memory:
            deviation = self.aim.deviation(self.costs)[places]
            found = expected_improvement(self.mean[places], deviation, float(self.mean[self.winner]))
            gains[:, able:] = found[able:]
        else:
            others = [index for index in range(able) if index != winner]
            for weight, moved in self.costs.taught(places, self.now.at_s, REPEATS, self.now.device):
                apart = moved - moved[:, :, winner : winner + 1, :]
                deviation = np.sqrt((apart**2).sum(0))  # (repeats, z, x)
                of_others = np.zeros((len(REPEATS), count))
                if others:
                    of_others = _improvement(behind[others][None, :, None], deviation[:, others, :]).max(1)
                itself = _improvement(behind[None, :], np.diagonal(deviation, axis1=1, axis2=2))
                itself[:, :able] = 0.0
                gains += weight * np.maximum(of_others, itself)
        fits = likelihood[places].copy()
        fits[:able] = 1.0
        gains *= fits
        seconds = self.costs.probe_seconds[places]
        seconds[:able] = [self.seconds(place) for place in places[:able]]
        scores = gains * self.run_s / (np.array(REPEATS)[:, None] * seconds)
        best = scores.argmax(0)
        return gains[best, np.arange(count)], scores.max(0)

    # Proof ------------------------------------------------------------------------------------------------------

    def _block(self, place: int) -> tuple[list[Observation], list[Observation]]:
        """The measurements of this place and of the baseline that are side by side, or are with one on this device now."""
        some, others = (
            [*self.of(at), *(seen for seen in self.expected if self.model.place[seen.configuration] == at)]
            for at in (place, self.base)
        )
        now = self._next(place, self.now.at_s)

        def kept(measured: Sequence[Observation], rivals: Sequence[Observation]) -> list[Observation]:
            return [seen for seen in measured if any(beside(seen, other) for other in (*rivals, now))]

        return kept(some, others), kept(others, some)

    def _next(self, place: int, at_s: float | None) -> Observation:
        """A measurement of this place that begins then on this device."""
        expected = _believed(self.model, self.costs, self.model.configurations[place], at_s, self.now.device)
        return replace(expected, seconds=self.seconds(place))

    def _claim(self, place: int) -> Ratio | None:
        """How many times as fast the place is shown to be as the baseline."""
        if self.base is None:
            return None
        if place == self.base:
            return Ratio(1.0, 1.0, 1.0)
        return claim(self.of(place), self.of(self.base), self.each)

    def _path(self, place: int) -> Iterator[tuple[int | None, float, float]]:
        """A proof's measurements one after the other: (place, seconds until it ends, the claim's variance then); the first one
        is of what is measured now."""
        assert self.base is not None
        pair, at, spent = (place, self.base), self.now.at_s, 0.0
        block = self._block(place)
        errors = [error for error in errors_of(*block) if error[2] > LEAST_WEIGHT]
        recent = max(self.measured, key=lambda seen: (seen.device == self.now.device, seen.started_s or 0.0))
        last = self.model.place[recent.configuration]

        def variance(block: Sequence[Sequence[Observation]]) -> float:
            """Of the claim from these."""
            if min(map(len, block)) < 1:
                return math.inf
            measured = [*block[0], *block[1]]
            clock, noise = Clock.of(measured), own_noise(measured) ** 2
            return sum(
                weight * contrast_of(clock.covariance(drift) + np.diag(noise + error**2), len(block[0]))[1]
                for error, drift, weight in errors
            )

        def is_claim() -> bool:
            return min(map(len, block)) >= self.each

        def with_one_more(side: int) -> tuple[list[Observation], list[Observation]]:
            mine, its = block
            more = self._next(pair[side], at)
            return ([*mine, more], its) if side == 0 else (mine, [*its, more])

        def preferred(side: int) -> tuple[bool, float, bool]:
            """Whom the claim still lacks, then who makes it surest, then who was not measured just now."""
            lacks = len(block[side]) < self.each <= len(block[1 - side])
            return not lacks, round(variance(with_one_more(side)), 12), pair[side] == last

        yield None, 0.0, variance(block) if self.expected and is_claim() else math.inf
        for _ in range(MOST_PROOF):
            side = min((0, 1), key=preferred)
            block, last = with_one_more(side), pair[side]
            spent += self.seconds(last)
            at = None if at is None else at + self.seconds(last)
            yield last, spent, variance(block) if is_claim() else math.inf

    def is_handed_out(self) -> bool:
        """True if the winner would be handed out without a proof: a first measurement shows it faster by its steps alone."""
        firsts = [self.of(place)[:1] for place in (self.winner, self.base)]
        if not all(firsts):
            return True
        (mine,), (its,) = firsts
        return its.log_step - mine.log_step > 1.96 * math.hypot(mine.noise, its.noise)

    def proof(self) -> "_Proof | None":
        """The winner's proof; None: not worth it, proven, or what is measured now may prove it."""
        if self.winner is None or self.base is None or self.winner == self.base:
            return None
        if self.claim is not None and (self.claim.low > 1 or self.aim.of_memory):
            return None
        if not (self.may_repeat(self.winner, PROVEN) and self.may_repeat(self.base, PROVEN)):
            return None
        mean, variance = self.difference(self.winner, [self.base])
        ahead, unsure = float(mean[0]), float(variance[0])
        gain = -math.expm1(-ahead) if ahead > 0 else 0.0
        if self.aim.of_memory:
            gain = -float(np.expm1(self.mean[self.base] - self.mean[self.winner]))
        best: tuple[bool, float, int | None, float, float] | None = None  # in time, value, place, gain, seconds
        first: int | None = None
        for place, spent, claimed in self._path(self.winner):
            first = place if first is None else first
            if math.isinf(claimed):
                continue
            proves = float(ndtr((ahead - 1.96 * math.sqrt(claimed)) / math.sqrt(unsure + claimed)))
            proves = 1.0 if self.aim.of_memory else proves
            value = proves * gain * self.run_s - spent
            option = spent <= self.now.seconds_left, value, first, proves * gain, spent
            if value > 0 and (best is None or option[:2] > best[:2]):
                best = option
        if best is None:
            return None
        in_time, _, place, gain, spent = best
        if place is None:
            return None
        return _Proof(place, gain, gain * self.run_s / spent, in_time)

    def reserved(self) -> float:
        """Seconds that other measurements leave for the proof."""
        seconds_left = self.now.seconds_left
        if math.isinf(seconds_left) or self.base is None or self.winner is None:
            return 0.0
        started = [seen.started_s for seen in self.measured if seen.started_s is not None]
        spent = self.now.at_s - min(started) if started and self.now.at_s is not None else 0.0
        if self.winner == self.base:
            wanted = (2 * self.each - 1) * self.seconds(self.base)
            return min(wanted, PROVING * (spent + seconds_left))
        if self.proof() is None or self.needed_s(self.winner) > seconds_left:
            return 0.0
        # Of what is side by side now the next measurement may leave nothing.
        return SLACK * self.each * (self.seconds(self.winner) + self.seconds(self.base))


def _improvement(ahead: Numbers, deviation: Numbers) -> Numbers:
    """Expected improvement, with no deviation too."""
    return expected_improvement(ahead, np.maximum(deviation, 1e-12), 0.0)


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


def _believed(
    model: CostModel, costs: Costs, configuration: Configuration, at_s: float | None = None, device: str = ""
) -> Observation:
    """The observation that is expected of a measurement that begins then on this device."""
    place = model.place[configuration]
    optimizer = float(np.exp(costs.log_optimizer_step[place]))
    step = configuration.gradient_accumulation_steps * float(np.exp(costs.log_micro_step[place])) + optimizer
    return Observation(
        configuration,
        Outcome.COMPLETED,
        step,
        optimizer,
        noise=BELIEVED,
        seconds=float(costs.probe_seconds[place]),
        device=device,
        started_s=at_s,
    )
