"""Policy of a search: the one measurement whose expected gain for the training that follows is largest for its seconds.

    new        a configuration that was not measured: it may beat the winner
    compare    one that was: another measurement may show that it, not the winner, is the fastest
    prove      the winner and the baseline, in pairs: how many times as fast the winner is has to be shown, otherwise the
               user's settings are kept

All measurements, first ones and repeated ones, are observations of one model (sampler/cost_model.py), the machine's drift
among them. A comparison is worth the expected gain in the speed of what would be handed out (knowledge gradient: Frazier, Powell
and Dayanik, 2009; of the best number of repeats a second: Frazier and Powell, 2010), times the seconds of the training.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import numpy as np

from autotune.core import Configuration
from autotune.core.interval import Ratio
from autotune.core.stop_reason import StopReason
from autotune.judge.standing import Standing
from autotune.sampler.constants import (
    COMPARING,
    CONFIDENCE,
    FIRST_PROBES,
    FIRST_TRIED,
    MIN_COMPARE_SCORE,
    OPTIMISM,
    P_FIT_CERTAIN,
    P_FIT_LIKELY,
    P_FIT_NEGLIGIBLE,
    P_FIT_RISKY,
    PATIENCE,
    RISK_DISCOUNT,
    RIVALS,
)
from autotune.sampler.cost_model import CostModel
from autotune.sampler.costs import ExpectedCosts, Places
from autotune.sampler.gains import State
from autotune.sampler.gp import Numbers
from autotune.sampler.proof import proof, reserved
from autotune.sampler.situation import Situation

DRAWS = 400
"""Random draws of all rivals' speeds and peaks together, which give the bounds. Technical: they give the probability of the
bound within 1 %."""


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
    DRY = "dry"  # nothing was better for PATIENCE trials, and nothing is expected to win the margin
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
    round: int = 0  # of a proof: the other one's of an open pair; 0: of a new pair
    stop: StopReason | None = None  # why nothing new is proposed, of a sampler that knows no gains


def choose(model: CostModel, standing: Standing, situation: Situation) -> Choice:
    """The measurement to make next."""
    state, probes_left = State(model, standing, situation), situation.probes_left
    if state.winner is None:
        return _likely_to_fit(state, probes_left)
    rivals = _Rivals.of(state)
    # The most promising configuration is tried, whatever time that leaves.
    in_time = situation.seconds_left - (reserved(state) if len(state.tried) > 1 else 0.0)
    may_fit = [place for place in rivals.unlikely if situation.risks and state.likelihood[place] >= P_FIT_RISKY]
    gains, scores = state.gains([*rivals.certain, *rivals.likely, *may_fit])
    option, later = None, False
    if probes_left > 0:
        option, later = _new(state, rivals, may_fit, gains, scores, in_time)
    again, again_later = _again(state, gains, scores, in_time)
    is_early = len(state.tried) < FIRST_PROBES
    if again is not None and (option is None or (again.score > option.score and not is_early)):
        option = again
    next_proof = proof(state)
    # An open pair is finished: a claim is looked at after so many as were planned.
    if (
        next_proof is not None
        and next_proof.in_time
        and (option is None or (next_proof.round and option.why is not Why.NEW))
    ):
        option = _Option(next_proof.place, Why.PROVE, next_proof.gain, next_proof.score, round=next_proof.round)
    if option is not None:
        return rivals.measured(option)
    is_dry = bool((scores[[*rivals.certain, *rivals.likely]] > 1).any())
    return rivals.none_of(_end(rivals, later or again_later or next_proof is not None, is_dry))


@dataclass(frozen=True)
class _Option:
    """A measurement that may be made. score: how many times its seconds it is worth."""

    place: int
    why: Why
    gain: float
    score: float
    risky: bool = False
    round: int = 0


def _likely_to_fit(state: State, probes_left: float) -> Choice:
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
    if seconds > state.situation.seconds_left:
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

    state: State
    certain: list[int]
    likely: list[int]
    unlikely: list[int]
    max_gain_if_certain: float  # of `certain`
    max_gain: float  # of these and `likely`
    max_gain_if_fits: float  # of all

    @classmethod
    def of(cls, state: State) -> "_Rivals":
        likelihood = state.likelihood
        optimistic = state.mean + OPTIMISM * state.deviation
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
        bounds = _max_gains(state.costs, state.winner, places, likelihood, state.situation.seed)
        return cls(state, certain, likely, unlikely, *bounds)

    def none_of(self, end: End) -> Choice:
        """The choice to measure nothing any more."""
        state, costs = self.state, self.state.costs
        # As the second configuration is chosen.
        promising = max([*self.certain, *self.likely], key=lambda place: state.worth[place], default=None)
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
            round=option.round,
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
    state: State,
    rivals: _Rivals,
    may_fit: Sequence[int],
    gains: Numbers,
    scores: Numbers,
    in_time: float,
) -> tuple[_Option | None, bool]:
    """(the untried configuration that is worth most for its seconds, whether others would be but do not end in time).

    may_fit: places tried as a risk. gains, scores: by place.
    """
    costs, tried, later = state.costs, len(state.tried), False
    margin, probes_left = state.situation.margin, state.situation.probes_left
    option: _Option | None = None
    is_first = tried < FIRST_PROBES and state.model.training_steps is None
    is_dry = state.since_better(margin) >= PATIENCE and margin > 0
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
        if is_dry:
            worth &= gains[places] > margin
        if not risky:
            left = min(probes_left, in_time // float(np.median(seconds))) if in_time < math.inf else probes_left
            promising = np.isin(places, _with_promising(state.model, places, state.tried, left))
            worth &= promising if (promising & worth).any() else True
        later |= bool((worth & (seconds > in_time)).any())
        able = places[worth & (seconds <= in_time)]
        if len(able):
            order = scores[able]
            if tried == 1:  # what is expected to be the fastest, rather than what may be
                order = np.exp(state.worth[able] - state.worth[state.winner]) * state.likelihood[able]
            best = int(able[np.argmax(order)])
            score = safer * float(scores[best])
            if option is None or score > option.score:
                option = _Option(best, Why.NEW, float(gains[best]), score, risky=risky)
            if tried == 1:
                break
    return option, later


def _again(state: State, gains: Numbers, scores: Numbers, in_time: float) -> tuple[_Option | None, bool]:
    """(configuration that is worth most to be compared with the winner, whether others do not end in time)."""
    running = [state.model.place[seen.configuration] for seen in state.expected]
    worth = [
        place
        for place in state.able
        if scores[place] > MIN_COMPARE_SCORE and place not in running and state.may_matter(place)
    ]
    first_s, again_s = (
        sum(seen.seconds for seen in state.measured if bool(seen.round) is again) for again in (False, True)
    )
    worth = [place for place in worth if again_s + state.seconds(place) <= COMPARING * first_s]
    able = [place for place in worth if state.seconds(place) <= in_time]
    later = len(able) < len(worth)
    if not able:
        return None, later
    best = max(able, key=lambda place: scores[place])
    return _Option(best, Why.COMPARE, float(gains[best]), float(scores[best])), later


def _end(rivals: _Rivals, later: bool, is_dry: bool) -> End:
    """The reason for which nothing is measured any more.

    later: whether something that is worth its seconds would not end in time. is_dry: whether something would be worth them.
    """
    if later:
        return End.TIME
    if not rivals.state.untried.any():
        return End.ALL
    if not (rivals.certain or rivals.likely or rivals.unlikely):
        return End.GAIN
    if rivals.state.situation.probes_left <= 0:
        return End.PROBES
    if rivals.max_gain <= rivals.state.situation.margin:
        return End.GAIN
    return End.DRY if is_dry else End.WORTH


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
