"""Claim: speed of one configuration as a multiple of another's, by measurements side by side in time.

    log(speed) = configuration + device + drift of the device at that time + noise of the process

Errors are learned from the measurements of the two configurations alone, from a prior that is as wide as devices differ:
so a claim follows from the two trials' files, whatever else a study holds.
"""

import math
from collections.abc import Sequence
from itertools import product
from statistics import median_low

import numpy as np

from autotune.core.interval import Ratio
from autotune.sampler.gp import Numbers
from autotune.sampler.observation import Observation
from autotune.sampler.prior import Prior
from autotune.sampler.scales import DRIFTS, LEAST_NOISE, NODES, Clock

BESIDE = 3
"""Measurements are side by side if they begin at most this number of their durations apart."""

EACH = 2
"""Measurements side by side that a claim needs of each configuration."""

RESTLESS = (0.03, 0.1, 0.3, 1.0)
"""Noise of two processes on a machine that others use too, whatever the steps within each of them show."""

RESTLESS_WEIGHT = 0.3
"""Prior weight of each of these, with 1 for the usual noise: with it the 95 % intervals of claims hold the truth in 89 to
97 % of simulated searches, on quiet machines and on such ones; without them in 12 % if processes differ by 30 %."""

DIGITS = 9
"""Significant digits of a claim: further digits differ between two processes that solve the same equations, and a study's
numbers are the same wherever it is read."""

Errors = Sequence[tuple[float, float, float]]
"""(noise, drift, weight): standard deviations of measurements' errors, of a process and of a device over time, and how likely
these are."""


def are_side_by_side(first: Observation, other: Observation) -> bool:
    """True if two measurements are side by side.

    On one device, and at most BESIDE durations apart, or of one round if their times are not known.
    """
    if not first.devices & other.devices:
        return False
    if first.started_s is None or other.started_s is None:
        return first.round == other.round
    return abs(first.started_s - other.started_s) <= BESIDE * max(first.seconds, other.seconds)


def side_by_side(
    above: Sequence[Observation], below: Sequence[Observation]
) -> tuple[list[Observation], list[Observation]]:
    """The measurements of each that are side by side with one of the others."""
    return (
        [seen for seen in above if any(are_side_by_side(seen, other) for other in below)],
        [seen for seen in below if any(are_side_by_side(seen, other) for other in above)],
    )


def claim(above: Sequence[Observation], below: Sequence[Observation], min_repeats: int = EACH) -> Ratio | None:
    """The speed of one configuration over the other's, with its 95 % interval; None if it is not shown.

    above, below: their measurements. Only measurements side by side count, at least `min_repeats` of both.

    Generalised least squares (Rasmussen and Williams, 2006, section 2.7, without a prior of the means), mixed over the errors
    that are likely.
    """
    above, below = side_by_side(*([seen for seen in some if seen.step_s is not None] for some in (above, below)))
    if min(len(above), len(below)) < min_repeats:
        return None
    measured = [*above, *below]
    times, errors = _log_times(measured), errors_of(above, below)
    contrasts, variances = contrasts_of(covariances(measured, errors), len(above))
    parts = [  # (mean, standard deviation, weight) of the logarithm
        (-float(contrast @ times), math.sqrt(variance), weight)
        for contrast, variance, (_, _, weight) in zip(contrasts, variances, errors, strict=True)
    ]

    def share_below(value: float) -> float:
        return sum(
            weight * math.erfc((mean - value) / (deviation * math.sqrt(2))) / 2 for mean, deviation, weight in parts
        )

    def quantile(share: float) -> float:
        low = min(mean - 12 * deviation for mean, deviation, _ in parts)
        high = max(mean + 12 * deviation for mean, deviation, _ in parts)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if share_below(middle) < share else (low, middle)
        return math.exp((low + high) / 2)

    mean = sum(weight * mean for mean, _, weight in parts)
    return Ratio(*(float(f"{value:.{DIGITS}g}") for value in (math.exp(mean), quantile(0.025), quantile(0.975))))


def contrasts_of(each: Numbers, of_first: int) -> tuple[Numbers, Numbers]:
    """((e, m) weights, (e,) variances) of estimates of by how much the first measurements lie above the others.

    each: (e, m, m) covariances, one for each estimate.
    """
    count = each.shape[-1]
    design = np.stack([np.ones(count), np.arange(count) < of_first], 1)
    weighed = np.linalg.solve(each, design[None])
    inverse = np.linalg.inv(design.T @ weighed)
    return (inverse @ weighed.swapaxes(1, 2))[:, 1], inverse[:, 1, 1]


def covariances(measured: Sequence[Observation], errors: Errors) -> Numbers:
    """(e, m, m) of the measurements, for each of the errors."""
    clock, own = Clock.of(measured), own_noise(measured) ** 2
    drifting = {drift: clock.covariance(drift) for drift in {drift for _, drift, _ in errors}}
    alone = [np.diag(noise**2 + own) for noise, _, _ in errors]
    return np.stack([drifting[drift] + part for (_, drift, _), part in zip(errors, alone, strict=True)])


def own_noise(measured: Sequence[Observation]) -> Numbers:
    """(m,) standard deviations that each measurement's steps add to its noise."""
    return Prior().own * np.array([seen.noise for seen in measured])


def speeds(groups: Sequence[Sequence[Observation]]) -> list[float]:
    """Steps / second of each of these configurations, or tokens / second if all are counted.

    From all its measurements, without their devices' differences and drift. Each needs a timed measurement.
    """
    measured, errors = [seen for group in groups for seen in group], errors_of(*groups)
    design, times = _columns(groups), _log_times(measured)
    weighed = np.linalg.solve(covariances(measured, errors), design[None])
    means = np.linalg.solve(design.T @ weighed, weighed.swapaxes(1, 2) @ times[:, None])[..., 0]
    logs = np.array([weight for *_, weight in errors]) @ means
    return [math.exp(-log) for log in logs]


def errors_of(*groups: Sequence[Observation]) -> Errors:
    """The likely errors of these configurations' measurements.

    From a prior and their restricted likelihood (Patterson and Thompson, 1971).
    """
    groups = tuple(group for group in groups if group)
    prior, measured = Prior(), [seen for group in groups for seen in group]
    within = max(median_low(seen.noise for seen in measured), LEAST_NOISE) if measured else LEAST_NOISE
    spread = prior.spread.noise if prior.spread else 0.0
    usual, are_repeated = prior.between * within, len(measured) > len(groups)
    noises = [(usual * math.exp(spread * node), -0.5 * node**2) for node in NODES[0]]
    if are_repeated:
        noises += [(math.hypot(usual, more), math.log(RESTLESS_WEIGHT)) for more in RESTLESS]
    drifts = DRIFTS if Clock.of(measured).is_known else DRIFTS[:1]
    errors = [(noise, drift, log + math.log(weight)) for (noise, log), (drift, weight) in product(noises, drifts)]
    logs = np.array([log for *_, log in errors])
    if are_repeated:
        design, times, covariance = _columns(groups), _log_times(measured)[:, None], covariances(measured, errors)
        weighed = np.linalg.solve(covariance, np.hstack([design, times])[None])
        information, score = design.T @ weighed[..., :-1], design.T @ weighed[..., -1:]
        squares = times.T @ weighed[..., -1:] - score.swapaxes(1, 2) @ np.linalg.solve(information, score)
        logs -= 0.5 * (squares[:, 0, 0] + np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1])
    likely = np.exp(logs - logs.max())
    weights = (likely / likely.sum()).tolist()
    return [(noise, drift, weight) for (noise, drift, _), weight in zip(errors, weights, strict=True)]


def _columns(groups: Sequence[Sequence[Observation]]) -> Numbers:
    """(m, k): which configuration each measurement is of."""
    which = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return np.asarray(which[:, None] == np.arange(len(groups)), float)


def _log_times(measured: Sequence[Observation]) -> Numbers:
    """(m,): logarithms of the seconds of a step, or of a token if all are counted."""
    times = np.array([seen.log_step for seen in measured])
    if measured and all(seen.tokens for seen in measured):
        times = times - np.log([seen.tokens for seen in measured])
    return times
