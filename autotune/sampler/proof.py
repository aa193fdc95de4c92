"""Proof of the winner: pairs of measurements of it and of the baseline, until a look at them is not worth its seconds."""

import math
from typing import NamedTuple

from scipy.special import ndtr

from autotune.core import Configuration
from autotune.core.measurement import JOIN
from autotune.judge.claim import COMPARISONS, critical, rounds_of
from autotune.judge.constants import BESIDE, LOOKS, PROCESSES_DIFFER
from autotune.sampler.constants import DRIFT_PROBES, FIRM_PAIRS, LEAST_POWER, MOST_BEGUN, PROVING, SLACK, WIDE
from autotune.sampler.gains import State


class Proof(NamedTuple):
    """The next measurement of a proof. score: how many times its seconds it is worth. round: of an open pair; 0: of a new one.

    seconds: to the look that is worth most.
    """

    place: int
    gain: float
    score: float
    seconds: float
    in_time: bool
    round: int = 0


def proof(state: State) -> Proof | None:
    """The winner's proof; None: not worth it, proven, or what is measured now comes first."""
    if state.winner is None or state.base is None or state.winner == state.base or not state.situation.min_repeats:
        return None
    had, claim = state.pairs(state.winner), state.claim
    if claim is not None and claim.low > 1 and (claim.relative_width <= WIDE or had >= FIRM_PAIRS):
        return None
    if len(state.of(state.winner)) > MOST_BEGUN:
        return None
    mean, variance = state.difference(state.winner, [state.base])
    ahead, unsure = float(mean[0]), float(variance[0])
    if ahead <= 0:
        return None
    gain, pair_s, (place, number) = (
        -math.expm1(-ahead),
        state.seconds(state.winner) + state.seconds(state.base),
        _next(state),
    )
    done_s = pair_s - state.seconds(place) if number and place is not None else 0.0  # of an open pair
    is_time = (FIRM_PAIRS - had) * pair_s - done_s <= state.situation.seconds_left  # for what is not wide
    best: tuple[bool, float, float, float] | None = None  # in time, value, gain, seconds
    for look in LOOKS:
        if look <= had or look < state.situation.min_repeats:
            continue
        spent, power = (look - had) * pair_s - done_s, _power(state, look, ahead, unsure, is_time)
        option = spent <= state.situation.seconds_left, power * gain * state.run_s - spent, power * gain, spent
        if power >= LEAST_POWER and option[1] > 0 and (best is None or option[:2] > best[:2]):
            best = option
    if best is None or place is None:
        return None
    in_time, _, gain, spent = best
    return Proof(place, gain, gain * state.run_s / spent, spent, in_time, number)


def _power(state: State, look: int, ahead: float, unsure: float, is_time: bool) -> float:
    """Probability that a look shows a gain of this logarithm and variance, over what measurements may err by.

    A pair errs by the noise of two processes and the drift from one to the next. If samples differ in length, so do measurements,
    but not the two of a pair, which trained on the same ones. Too wide an interval shows too little, if there is time for more.
    """
    power, drifted, trial = 0.0, 1 - math.exp(-1 / DRIFT_PROBES), state.standing.compared
    of_processes = PROCESSES_DIFFER if trial and trial.measurement.tokens_per_sample is not None else math.inf
    for usual, drift, weight in state.costs.times.errors:
        noise = min(usual, of_processes)
        of_pair = 2 * (noise**2 + drift**2 * drifted)
        half = critical(look, LOOKS[look]) * math.sqrt(of_pair)
        if look >= FIRM_PAIRS or 2 * half <= WIDE or not is_time:
            power += weight * float(ndtr((ahead - half) / math.sqrt(of_pair / look + unsure)))
    return power


def _next(state: State) -> tuple[int | None, int]:
    """(place to measure next, round that the other one has already or 0); no place if it runs now.

    A new pair begins with what was measured last: between pairs nothing changes, and a steady drift cancels.
    """
    device, now = state.situation.device, state.situation.at_s
    winner, base = (state.trial(place) for place in (state.winner, state.base))
    running = {*state.situation.running.values()}
    for trial, other in ((winner, base), (base, winner)):
        for number, measured in rounds_of(trial).items() if trial else ():
            is_open = number <= COMPARISONS and number not in (other.rounds if other else ())
            ended = None if measured.started_s is None else measured.started_s + measured.probe_seconds
            is_now = now is None or ended is None or now - ended <= (BESIDE - 1) * measured.probe_seconds
            if is_open and is_now and device in measured.device.split(JOIN) and other is not None:
                place = state.model.place[other.configuration]
                return (None if other.configuration in running else place), number
    if running & {trial.configuration for trial in (winner, base) if trial}:
        return None, 0
    return (state.winner if _last(state, device) == state.model.configurations[state.winner or 0] else state.base), 0


def _last(state: State, device: str) -> Configuration | None:
    """The configuration that was measured last on this device."""
    seen = [seen for seen in state.measured if device in seen.devices]
    return seen[-1].configuration if seen else None


def reserved(state: State) -> float:
    """Seconds that other measurements leave for the proof."""
    seconds_left = state.situation.seconds_left
    if math.isinf(seconds_left) or state.base is None or state.winner is None:
        return 0.0
    started = [seen.started_s for seen in state.measured if seen.started_s is not None]
    spent = state.situation.at_s - min(started) if started and state.situation.at_s is not None else 0.0
    least = min(state.whole_proof_s(), PROVING * (spent + seconds_left))
    planned = proof(state) if state.winner != state.base else None
    return max(least, SLACK * planned.seconds) if planned is not None and planned.in_time else least
