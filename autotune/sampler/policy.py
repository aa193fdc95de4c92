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

import numpy as np
from scipy.special import ndtr

from autotune.core import Configuration, Outcome
from autotune.core.interval import Ratio
from autotune.core.stop_reason import StopReason
from autotune.sampler.claim import EACH, are_side_by_side, claim, contrasts_of, covariances, errors_of
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import ExpectedCosts, Places
from autotune.sampler.gp import Numbers, expected_improvement
from autotune.sampler.observation import Observation
from autotune.sampler.scales import LEAST_WEIGHT

P_FIT_CERTAIN, P_FIT_LIKELY = 0.95, 0.8
"""Probability of fitting from which on a configuration is certain to fit, and likely to. Until something fits, the likeliest is
tried."""

P_FIT_RISKY = 0.4
"""Probability of fitting from which on a configuration is tried as a risk, once something fits: running out of memory costs the
seconds of a probe, a slower configuration hours of training."""

RISK_DISCOUNT = (1.0, 0.3, 0.05)
"""Factors of the worth of what is certain to fit, likely to, and a risk: one that runs out of memory tells nothing of speed, and
disturbs whoever shares the device."""

RISKS = 2
"""Largest number of risky tries of a search."""

RUN_S = 3600.0
"""Seconds of the training to tune for if its steps are not announced: the least that anyone tunes for."""

FIRST_PROBES = 3
"""Probes before which nothing is concluded from a model that was fitted to them."""

FIRST_TRIED = 4
"""Probes, the baseline's among them, within which each setting that is expected to be worth much is tried if it is worth
its seconds, whatever other models showed: it may not hold for this one."""

P_FIT_NEGLIGIBLE = 0.005
"""Probability of fitting below which a configuration is not considered for the bounds."""

RIVALS, DRAWS = 100, 400
"""Untried configurations with the largest possible gains, among the likely to fit and among the others; random draws
of all their speeds and peaks together, which give the bounds."""

CONFIDENCE = 0.95
"""Probability with which no untried configuration gains more than the bound."""

FANTASY_NOISE = 0.05
"""Noise of the assumed result of a measurement that runs or is planned."""


REPEATS = (1, 2, 4)
"""Numbers of repeats that a measurement is judged by: one alone may tell nothing of what several do."""

CHANGE = 0.001
"""Share of the speed that each changed setting has to win."""

SAME_MEMORY = 0.05
"""Share by which peaks have to differ to be a reason to take the slower of two."""

MOST_PROOF = 16
"""Largest number of measurements that a proof is expected to take."""

COMPARED, PROVEN = 4, 8
"""Most measurements of one configuration, as multiples of the number that a claim needs: to tell which one is the fastest, and
to prove how much faster it is."""

MIN_COMPARE_SCORE = 0.1
"""Share of its seconds that a comparison has to be worth. Its gain counts a single rival and no later measurement, a lower
bound: it is worth several times that."""

SLACK = 1.1
"""Seconds that a proof may take, as a multiple of the expected seconds."""

PROVING = 0.2
"""Share of a limited time that is kept for a proof until something is worth proving."""


class Why(StrEnum):
    """Purpose of a measurement."""

    NEW = "new"
    COMPARE = "compare"
    PROVE = "prove"


class End(StrEnum):
    """Reason for which nothing is measured any more."""

    ALL = "all"  # all configurations are measured or ruled out
    GAIN = "gain"  # nothing is expected to win more than the margin
    WORTH = "worth"  # nothing is worth its seconds
    TIME = "time"  # what is worth its seconds does not end in time
    PROBES = "probes"  # no new configuration may be measured


@dataclass(frozen=True)
class Choice:
    """The measurement to make next, or why there is none; gains are shares of the winner's speed."""

    configuration: Configuration | None  # None: nothing is measured now
    why: Why | None = None  # None: nothing is measured now
    end: End | None = None  # None: something is measured
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
    stop: StopReason | None = None  # why nothing new is proposed, of a sampler that knows no gains


def choose(
    model: CostModel,
    measurements: Sequence[Observation],
    *,
    implied: Callable[[Configuration], bool] = lambda configuration: False,
    at_s: float | None = None,
    device: str = "",
    seconds_left: float = math.inf,
    repeat_seconds: Mapping[Configuration, float] = {},
    run_s: float | None = None,
    running: Mapping[str, Configuration] = {},
    calibrations: Sequence[Observation] = (),
    disqualified: Collection[Configuration] = (),
    risks: int = 0,
    probes_left: float = math.inf,
    margin: float = 0.01,
    min_repeats: int = EACH,
    compared: Configuration | None = None,
    seed: int = 0,
) -> Choice:
    """The measurement to make next.

    measurements: all that ended, in the order of their time. implied: whether they rule out a configuration. at_s: the time now,
    on the clock of Observation.started_s. device: that measures next. seconds_left: of the time limit. repeat_seconds: of what
    was measured, if that is not as long as a first measurement. run_s: seconds of the training that follows; None: as the model's
    training steps say, else an hour. running: device -> what is measured there now, assumed to end as expected. calibrations:
    measurements that tell how devices differ, and are not part of a claim. disqualified: what cannot win. risks: how many tries
    of what may not fit are left. probes_left: how many configurations may still be measured first. margin: a share of the speed
    that is not worth a measurement. min_repeats: measurements of the winner and the baseline side by side that a claim needs; 0:
    nothing is measured again. compared: with what the winner is, if not with the baseline.
    """
    costs = model.costs([*measurements, *calibrations])
    expected = [
        _expected_observation(model, costs, configuration, at_s, name) for name, configuration in running.items()
    ]
    if running:
        costs = model.costs([*measurements, *calibrations, *expected])
    state = _State(
        model,
        costs,
        measurements,
        expected,
        _Now(at_s, device, seconds_left),
        run_s=run_s,
        implied=implied,
        disqualified=disqualified,
        repeat_seconds=repeat_seconds,
        min_repeats=min_repeats,
        compared=compared or model.baseline,
    )
    if state.winner is None:
        return _likely_to_fit(state, probes_left)
    rivals = _Rivals.of(state, seed)
    # The most promising configuration is tried, whatever time that leaves.
    in_time = seconds_left - (state.reserved() if len(state.tried) > 1 else 0.0)
    may_fit = [place for place in rivals.unlikely if risks and state.likelihood[place] >= P_FIT_RISKY]
    gains, scores = state.gains([*rivals.certain, *rivals.likely, *may_fit])
    option, later = None, False
    if probes_left > 0:
        option, later = _new(state, rivals, may_fit, gains, scores, in_time, margin, probes_left)
    again, again_later = _again(state, gains, scores, in_time)
    is_early = len(state.tried) < FIRST_PROBES
    if again is not None and (option is None or (again.score > option.score and not is_early)):
        option = again
    proof = state.proof()
    if proof is not None and proof.in_time:
        is_better = option is not None and proof.score > option.score and not is_early and not state.is_handed_out()
        option = proof if option is None or is_better else option
    if option is not None:
        return rivals.measured(option)
    return rivals.none_of(_end(rivals, probes_left, margin, later or again_later or proof is not None))


@dataclass(frozen=True)
class _Option:
    """A measurement that may be made. score: how many times its seconds it is worth."""

    place: int
    why: Why
    gain: float
    score: float
    in_time: bool = True
    risky: bool = False


def _likely_to_fit(state: "_State", probes_left: float) -> Choice:
    """The choice while nothing fits: the fastest of what is likely to, else the likeliest."""
    costs, likelihood, untried = state.costs, state.likelihood, state.untried.copy()
    if probes_left <= 0:
        return Choice(None, end=End.PROBES, untried=int(untried.sum()))
    likely = untried & (likelihood >= P_FIT_CERTAIN)
    likely = likely if likely.any() else untried & (likelihood >= P_FIT_LIKELY)
    places = _with_promising(state.model, np.flatnonzero(likely), state.tried)
    ordered = [*_descending(places, np.exp(state.mean - state.mean.max()) * likelihood)]
    untried[places] = False
    ordered += [*_descending(np.flatnonzero(untried), likelihood)]
    chosen = next(state.still_open(np.array(ordered, np.intp)), None)
    if chosen is None:
        return Choice(None, end=End.ALL)
    # Seconds are predicted of what was timed; else it takes at least as long as what did not fit.
    is_timed = any(seen.step_s is not None for seen in state.measured)
    longest_s = max((seen.seconds for seen in state.measured), default=0.0)
    seconds = float(costs.probe_seconds[chosen]) if is_timed else longest_s
    if seconds > state.now.seconds_left:
        return Choice(None, end=End.TIME, seconds=seconds, untried=len(ordered))
    return Choice(
        state.model.configurations[chosen],
        Why.NEW,
        gain=math.inf,
        seconds=seconds,
        fits=float(likelihood[chosen]),
        untried=len(ordered),
    )


@dataclass(frozen=True)
class _Rivals:
    """Places of the untried configurations with the largest possible gains, by how likely they fit, and bounds of the gains."""

    state: "_State"
    certain: list[int]
    likely: list[int]
    unlikely: list[int]
    max_gain_if_certain: float  # of `certain`
    max_gain: float  # of these and `likely`
    max_gain_if_fits: float  # of all

    @classmethod
    def of(cls, state: "_State", seed: int) -> "_Rivals":
        likelihood = state.likelihood
        optimistic = state.mean + 2 * state.deviation
        groups = (
            likelihood >= P_FIT_CERTAIN,
            (likelihood >= P_FIT_LIKELY) & (likelihood < P_FIT_CERTAIN),
            (likelihood >= P_FIT_NEGLIGIBLE) & (likelihood < P_FIT_LIKELY),
        )
        certain, likely, unlikely = (
            list(islice(state.still_open(_descending(np.flatnonzero(state.untried & group), optimistic)), RIVALS))
            for group in groups
        )
        places = np.array([*certain, *likely, *unlikely], np.intp)
        assert state.winner is not None
        bounds = _max_gains(state.costs, state.winner, places, likelihood, seed)
        return cls(state, certain, likely, unlikely, *bounds)

    def none_of(self, end: End) -> Choice:
        """The choice to measure nothing any more."""
        state, costs = self.state, self.state.costs
        # Expected to be fast, and not a wild guess: as the second configuration is chosen.
        promising = max(
            [*self.certain, *self.likely], key=lambda place: state.mean[place] - state.deviation[place], default=None
        )
        is_faster = promising is not None and state.mean[promising] > state.mean[state.winner]
        return replace(
            self._choice(),
            end=end,
            seconds=0.0 if promising is None else float(costs.probe_seconds[promising]),
            promising=state.model.configurations[promising] if is_faster and promising is not None else None,
        )

    def measured(self, option: _Option) -> Choice:
        state, place, is_new = self.state, option.place, option.why is Why.NEW
        return replace(
            self._choice(),
            configuration=state.model.configurations[place],
            why=option.why,
            gain=option.gain,
            seconds=float(state.costs.probe_seconds[place]) if is_new else state.seconds(place),
            fits=float(state.likelihood[place]) if is_new else 1.0,
            risky=option.risky,
        )

    def _choice(self) -> Choice:
        state = self.state
        assert state.winner is not None
        return Choice(
            None,
            winner=state.model.configurations[state.winner],
            claim=state.claim,
            max_gain=self.max_gain,
            max_gain_if_fits=self.max_gain_if_fits,
            untried=int(state.untried.sum()),
        )


def _new(
    state: "_State",
    rivals: _Rivals,
    may_fit: Sequence[int],
    gains: Numbers,
    scores: Numbers,
    in_time: float,
    margin: float,
    probes_left: float,
) -> tuple[_Option | None, bool]:
    """(the untried configuration that is worth most for its seconds, whether others would be but do not end in time).

    may_fit: places tried as a risk. gains, scores: by place.
    """
    costs, tried, later = state.costs, len(state.tried), False
    option: _Option | None = None
    is_first = tried < FIRST_PROBES and state.model.training_steps is None
    tiers = (
        (rivals.certain, rivals.max_gain_if_certain, False),
        (rivals.likely, rivals.max_gain, False),
        (may_fit, math.inf, True),
    )
    for (group, bound, risky), safer in zip(tiers, RISK_DISCOUNT, strict=True):
        if not group:
            continue
        places = np.array(group, np.intp)
        seconds = costs.probe_seconds[places]
        worth = (scores[places] > 1) | ((is_first or margin <= 0) and not risky)
        worth &= (gains[places] > (1 - CONFIDENCE) * margin) | (bound > margin)
        if not risky:
            left = min(probes_left, in_time // float(np.median(seconds))) if in_time < math.inf else probes_left
            promising = np.isin(places, _with_promising(state.model, places, state.tried, left))
            worth &= promising if (promising & worth).any() else True
        later |= bool((worth & (seconds > in_time)).any())
        able = places[worth & (seconds <= in_time)]
        if len(able):
            order = scores[able]
            if tried == 1:
                ahead = state.mean[able] - state.deviation[able] - state.mean[state.winner]
                order = np.exp(ahead) * state.likelihood[able]
            best = int(able[np.argmax(order)])
            score = safer * float(scores[best])
            if option is None or score > option.score:
                option = _Option(best, Why.NEW, float(gains[best]), score, risky=risky)
            if tried == 1:
                break
    return option, later


def _again(state: "_State", gains: Numbers, scores: Numbers, in_time: float) -> tuple[_Option | None, bool]:
    """(configuration that is worth most to be compared with the winner, whether others do not end in time)."""
    running = [state.model.place[seen.configuration] for seen in state.expected]
    worth = [
        place
        for place in state.able
        if scores[place] > MIN_COMPARE_SCORE and place not in running and state.may_repeat(place, COMPARED)
    ]
    able = [place for place in worth if state.seconds(place) <= in_time]
    later = len(able) < len(worth)
    if not able:
        return None, later
    best = max(able, key=lambda place: scores[place])
    return _Option(best, Why.COMPARE, float(gains[best]), float(scores[best])), later


def _end(rivals: _Rivals, probes_left: float, margin: float, later: bool) -> End:
    """The reason for which nothing is measured any more.

    later: whether something that is worth its seconds would not end in time.
    """
    if later:
        return End.TIME
    if not rivals.state.untried.any():
        return End.ALL
    if not (rivals.certain or rivals.likely or rivals.unlikely):
        return End.GAIN
    if probes_left <= 0:
        return End.PROBES
    return End.GAIN if rivals.max_gain <= margin else End.WORTH


@dataclass(frozen=True)
class _Now:
    """Time and device of the next measurement, and the seconds that are left."""

    at_s: float | None
    device: str
    seconds_left: float


class _State:
    """The winner so far, its proof, and the expected gains of further measurements.

    expected: what is measured now, as it is expected to end.
    """

    def __init__(
        self,
        model: CostModel,
        costs: ExpectedCosts,
        measured: Sequence[Observation],
        expected: Sequence[Observation],
        now: _Now,
        *,
        run_s: float | None,
        implied: Callable[[Configuration], bool],
        disqualified: Collection[Configuration],
        repeat_seconds: Mapping[Configuration, float],
        min_repeats: int,
        compared: Configuration,
    ) -> None:
        self.model, self.costs, self.measured, self.now, self.min_repeats = model, costs, measured, now, min_repeats
        self.expected, self.repeat_seconds, self.implied = expected, repeat_seconds, implied
        self.mean, self.deviation, self.likelihood = -costs.log_step, costs.deviation, costs.fits
        self.tried = list(dict.fromkeys(seen.configuration for seen in (*measured, *expected)))
        self.untried = np.ones(len(model.configurations), bool)
        self.untried[[model.place[configuration] for configuration in self.tried]] = False
        failed = {seen.configuration for seen in measured if not seen.feasible}
        whole = [seen for seen in measured if seen.feasible and not seen.ended_early and seen.step_s is not None]
        self.able = [
            model.place[configuration]
            for configuration in dict.fromkeys(seen.configuration for seen in whole)
            if configuration not in failed and configuration not in disqualified
        ]
        base, rival = model.place[model.baseline], model.place[compared]
        self.base = rival if rival in self.able else None
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
        """False once it was measured so often that another measurement is expected to show nothing."""
        return len(self.of(place)) < most * self.min_repeats

    def still_open(self, places: Places) -> Iterator[int]:
        """The places among these that are not ruled out."""
        return (place for place in places if not self.implied(self.model.configurations[place]))

    # The winner so far ------------------------------------------------------------------------------------------

    def needed_s(self, place: int) -> float:
        """Seconds that a proof of this place still needs at least."""
        if self.base is None or place == self.base:
            return 0.0
        mine, its = self._block(place)
        missing = max(0, self.min_repeats - len(mine)), max(0, self.min_repeats - len(its))
        return missing[0] * self.seconds(place) + missing[1] * self.seconds(self.base)

    def _whole_proof_s(self) -> float:
        """Seconds that a proof of what is measured next needs after that, if it is as fast as the baseline."""
        return 0.0 if self.base is None else max(0, 2 * self.min_repeats - 1) * self.seconds(self.base)

    def seconds(self, place: int) -> float:
        """Seconds of measuring it again."""
        return self.repeat_seconds.get(self.model.configurations[place], float(self.costs.probe_seconds[place]))

    def _winner(self) -> int | None:
        if not self.able:
            return None
        needed_s = {place: self.needed_s(place) for place in self.able}
        net = {place: self.worth[place] - needed_s[place] / self.run_s for place in self.able}
        able, base = self.able, self.base
        if base is not None:
            # Near the end of a limited time what can still be proven goes before what is a little faster and cannot.
            provable = [place for place in able if needed_s[place] <= self.now.seconds_left]
            able = provable if any(net[place] > net[base] for place in provable) else able
        top = max(able, key=lambda place: net[place])
        equal = [p for p in able if self.changes[p] == self.changes[top] and net[top] - net[p] <= CHANGE]
        least = min(self.costs.peak[place] for place in equal)
        lean = [place for place in equal if self.costs.peak[place] <= (1 + SAME_MEMORY) * least]
        return max(lean, key=lambda place: net[place])

    def difference(self, top: int, others: Sequence[int]) -> tuple[Numbers, Numbers]:
        """Mean and variance of by how much faster (logarithm) this place is than the others."""
        log_steps, _ = self.costs.drawn(np.array([top, *others], np.intp), 400, 0)
        ahead = log_steps[:, 1:] - log_steps[:, :1]
        return self.costs.log_step[list(others)] - self.costs.log_step[top], ahead.var(0)

    # Gains of further measurements ------------------------------------------------------------------------------

    def gains(self, untried: Sequence[int]) -> tuple[Numbers, Numbers]:
        """(n,) each, by place: the expected gain of a measurement, and how many times its seconds that is worth.

        Of a new one, or again of one that was measured; 0 elsewhere.
        """
        assert self.winner is not None
        places, able = np.array([*self.able, *untried], np.intp), len(self.able)
        count, winner = len(places), self.able.index(self.winner)
        needed = np.array([self.needed_s(place) for place in places])
        needed[able:] = self._whole_proof_s()
        net = self.worth[places] - needed / self.run_s
        behind = net - max(net[winner], net[:able].max())
        gains = np.zeros((len(REPEATS), count))
        others = [index for index in range(able) if index != winner]
        for weight, moved in self.costs.posterior_shift(places, self.now.at_s, REPEATS, self.now.device):
            apart = moved - moved[:, :, winner : winner + 1, :]
            deviation = np.sqrt((apart**2).sum(0))  # (repeats, z, x)
            of_others = np.zeros((len(REPEATS), count))
            if others:
                of_others = _improvement(behind[others][None, :, None], deviation[:, others, :]).max(1)
            itself = _improvement(behind[None, :], np.diagonal(deviation, axis1=1, axis2=2))
            itself[:, :able] = 0.0
            gains += weight * np.maximum(of_others, itself)
        gains[:, able:] *= self.likelihood[places[able:]]
        seconds = self.costs.probe_seconds[places]
        seconds[:able] = [self.seconds(place) for place in places[:able]]
        scores = gains * self.run_s / (np.array(REPEATS)[:, None] * seconds)
        by_place = np.zeros((2, len(self.mean)))
        by_place[:, places] = gains[scores.argmax(0), np.arange(count)], scores.max(0)
        return by_place[0], by_place[1]

    # Proof ------------------------------------------------------------------------------------------------------

    def _block(self, place: int) -> tuple[list[Observation], list[Observation]]:
        """The measurements of this place and of the baseline that are side by side, or are with one on this device now."""
        some, others = (
            [*self.of(at), *(seen for seen in self.expected if self.model.place[seen.configuration] == at)]
            for at in (place, self.base)
        )
        now = self._next(place, self.now.at_s)

        def kept(measured: Sequence[Observation], rivals: Sequence[Observation]) -> list[Observation]:
            return [seen for seen in measured if any(are_side_by_side(seen, other) for other in (*rivals, now))]

        return kept(some, others), kept(others, some)

    def _next(self, place: int, at_s: float | None) -> Observation:
        """A measurement of this place that begins then on this device."""
        expected = _expected_observation(
            self.model, self.costs, self.model.configurations[place], at_s, self.now.device
        )
        return replace(expected, seconds=self.seconds(place))

    def _claim(self, place: int) -> Ratio | None:
        """The speed of this place over the baseline's; None if it is not shown."""
        if self.base is None or not self.min_repeats:
            return None
        if place == self.base:
            return Ratio(1.0, 1.0, 1.0)
        return claim(self.of(place), self.of(self.base), max(EACH, self.min_repeats))

    def _path(self, place: int) -> Iterator[tuple[int | None, float, float]]:
        """A proof's measurements one after the other: (place, seconds until it ends, the claim's variance then).

        The first one is of what is measured now.
        """
        assert self.base is not None
        pair, at, spent = (place, self.base), self.now.at_s, 0.0
        block = self._block(place)
        errors = [error for error in errors_of(*block) if error[2] > LEAST_WEIGHT]
        weights = np.array([weight for *_, weight in errors])
        recent = max(self.measured, key=lambda seen: (seen.device == self.now.device, seen.started_s or 0.0))
        last = self.model.place[recent.configuration]

        def variance(block: Sequence[Sequence[Observation]]) -> float:
            """Variance of the claim from these."""
            if min(map(len, block)) < 1:
                return math.inf
            _, variances = contrasts_of(covariances([*block[0], *block[1]], errors), len(block[0]))
            return float(weights @ variances)

        def is_claim() -> bool:
            return min(map(len, block)) >= self.min_repeats

        def with_one_more(side: int) -> tuple[list[Observation], list[Observation]]:
            mine, its = block
            more = self._next(pair[side], at)
            return ([*mine, more], its) if side == 0 else (mine, [*its, more])

        def lacks(side: int) -> bool:
            return len(block[side]) < self.min_repeats <= len(block[1 - side])

        yield None, 0.0, variance(block) if self.expected and is_claim() else math.inf
        for _ in range(MOST_PROOF):
            longer = with_one_more(0), with_one_more(1)
            claimed = [variance(several) for several in longer]
            # First the side that the claim still lacks, then the one that makes it surest, then the one not just measured.
            *_, side = min((not lacks(side), round(claimed[side], 12), pair[side] == last, side) for side in (0, 1))
            block, last = longer[side], pair[side]
            spent += self.seconds(last)
            at = None if at is None else at + self.seconds(last)
            yield last, spent, claimed[side] if is_claim() else math.inf

    def is_handed_out(self) -> bool:
        """True if the winner would be handed out without a proof: a first measurement shows it faster by its steps alone.

        Winner and baseline are measured.
        """
        mine, its = (self.of(place)[0] for place in (self.winner, self.base))
        return its.log_step - mine.log_step > 1.96 * math.hypot(mine.noise, its.noise)

    def proof(self) -> _Option | None:
        """The winner's proof; None: not worth it, proven, or what is measured now may prove it."""
        if self.winner is None or self.base is None or self.winner == self.base:
            return None
        if self.claim is not None and self.claim.low > 1:
            return None
        if not (self.may_repeat(self.winner, PROVEN) and self.may_repeat(self.base, PROVEN)):
            return None
        mean, variance = self.difference(self.winner, [self.base])
        ahead, unsure = float(mean[0]), float(variance[0])
        gain = -math.expm1(-ahead) if ahead > 0 else 0.0
        best: tuple[bool, float, int | None, float, float] | None = None  # in time, value, place, gain, seconds
        first: int | None = None
        for place, spent, claimed in self._path(self.winner):
            first = place if first is None else first
            if math.isinf(claimed):
                continue
            proves = float(ndtr((ahead - 1.96 * math.sqrt(claimed)) / math.sqrt(unsure + claimed)))
            value = proves * gain * self.run_s - spent
            option = spent <= self.now.seconds_left, value, first, proves * gain, spent
            if value > 0 and (best is None or option[:2] > best[:2]):
                best = option
        if best is None:
            return None
        in_time, _, place, gain, spent = best
        if place is None:
            return None
        return _Option(place, Why.PROVE, gain, gain * self.run_s / spent, in_time)

    def reserved(self) -> float:
        """Seconds that other measurements leave for the proof."""
        seconds_left = self.now.seconds_left
        if math.isinf(seconds_left) or self.base is None or self.winner is None:
            return 0.0
        started = [seen.started_s for seen in self.measured if seen.started_s is not None]
        spent = self.now.at_s - min(started) if started and self.now.at_s is not None else 0.0
        if self.winner == self.base:
            return min(self._whole_proof_s(), PROVING * (spent + seconds_left))
        if self.proof() is None or self.needed_s(self.winner) > seconds_left:
            return 0.0
        # After the next measurement nothing may be side by side any more.
        return SLACK * self.min_repeats * (self.seconds(self.winner) + self.seconds(self.base))


def _improvement(ahead: Numbers, deviation: Numbers) -> Numbers:
    """Expected improvement, with no deviation too."""
    return expected_improvement(ahead, np.maximum(deviation, 1e-12), 0.0)


def run_seconds(training_steps: int | None, step_s: float) -> float:
    """Seconds of the run to tune for, at this step's."""
    return RUN_S if training_steps is None else training_steps * step_s


def _with_promising(
    model: CostModel, places: Places, tried: Sequence[Configuration], probes_left: float = math.inf
) -> Places:
    """The places that try their share of the settings that the first probes have to try."""
    left = min(FIRST_TRIED - len(tried), max(1, probes_left))
    codes = model.points.codes
    before = codes[[model.place[configuration] for configuration in tried]]
    missing = [(column, code) for column, code in model.promising if not (before[:, column] == code).any()]
    if left < 1 or not missing or not len(places):
        return places
    counts = np.sum([codes[places, column] == code for column, code in missing], 0)
    chosen: Places = places[counts >= min(math.ceil(len(missing) / left) if len(missing) >= left else 0, counts.max())]
    return chosen


def _max_gains(
    costs: ExpectedCosts, best: int, rivals: Places, likelihood: Numbers, seed: int
) -> tuple[float, float, float]:
    """Upper bounds of the rivals' gains, as shares: of the certain to fit, of the likely to fit, of all."""
    if not len(rivals):
        return 0.0, 0.0, 0.0
    log_step, peak = costs.drawn(np.array([best, *rivals], np.intp), DRAWS, seed)
    gains = np.where(peak[:, 1:] <= costs.allowed_bytes, log_step[:, :1] - log_step[:, 1:], 0.0)

    def bound(least: float) -> float:
        most = float(np.quantile(gains[:, likelihood[rivals] >= least].max(1, initial=0.0), CONFIDENCE))
        return float(np.expm1(most))

    return bound(P_FIT_CERTAIN), bound(P_FIT_LIKELY), bound(0.0)


def _descending(places: Places, by: Numbers) -> Places:
    return places[np.argsort(-by[places], kind="stable")]


def _expected_observation(
    model: CostModel, costs: ExpectedCosts, configuration: Configuration, at_s: float | None = None, device: str = ""
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
        noise=FANTASY_NOISE,
        seconds=float(costs.probe_seconds[place]),
        device=device,
        started_s=at_s,
    )
