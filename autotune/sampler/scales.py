"""Scales of a study: how far configurations and repeated probes differ on this device, learned from its probes.

Constants of one machine do not hold for another: how much two processes of one configuration differ, and how much
configurations differ beyond the effects of their settings. Each combination of scales on a grid is weighed by the density of
the micro-steps that were measured, times its prior (Rasmussen and Williams, 2006, section 5.2); a few of them, drawn by their
weights, stand for all, so that a search is as unsure of its scales as its probes leave it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from autotune.sampler.clock import Clock
from autotune.sampler.constants import DRIFTS, REST_DOUBT
from autotune.sampler.gp import ROUNDING, Numbers
from autotune.sampler.prior import Prior

NODES = ((-2.0, -1.0, 0.0, 1.0, 2.0), (-1.5, -0.5, 0.5, 1.5))
"""Nodes of the grid, in standard deviations of a scale's logarithm: of rest and noise, and of computation.
Technical: of an integral."""

LEAST_WEIGHT = 0.01
"""Weight of a rest and computation below which they are left out. Technical: saves time."""

GOLDEN = (5**0.5 - 1) / 2
"""Golden section, whose multiples are spread evenly over 0 to 1. Technical."""

NEGLIGIBLE = 1e-6
"""Weight of a combination that is left out. Technical: saves time."""

AT_ONCE = 2**20
"""Numbers of the covariances that are held at once. Technical: those of all combinations take gigabytes after some hundred
measurements."""


@dataclass(frozen=True)
class Scales:
    """Standard deviations of logarithms of seconds."""

    rest: float  # of a configuration's micro-step
    computation: float  # of what a micro-step computes
    noise: float  # of two processes of one configuration
    drift: float = 0.0  # of the machine's speed over a long time


@dataclass(frozen=True)
class Grid:
    """Combinations of scales and the logarithms of their prior weights."""

    scales: tuple[Scales, ...]
    log_weights: Numbers


def grid(prior: Prior, within: float, drifts: bool = False) -> Grid:
    """The combinations to weigh.

    within: usual noise of a measurement by the steps within it. drifts: whether measurements tell anything of the machine's
    speed over time.
    """
    if not prior.spread:
        return Grid((Scales(prior.micro_step.rest, prior.micro_step.computation, prior.between * within),), np.zeros(1))

    def around(median: float, spread: float, nodes: tuple[float, ...]) -> Iterator[tuple[float, float]]:
        return ((median * math.exp(spread * node), -0.5 * node**2) for node in nodes)

    kernel, spread = prior.micro_step, prior.spread
    combined = list(
        product(
            around(math.hypot(kernel.rest, REST_DOUBT), spread.rest, NODES[0]),
            around(kernel.computation, spread.computation, NODES[1]),
            around(prior.between * within, spread.noise, NODES[0]),
            ((drift, math.log(weight)) for drift, weight in (DRIFTS if drifts else DRIFTS[:1])),
        )
    )
    return Grid(
        tuple(Scales(*(value for value, _ in parts)) for parts in combined),
        np.array([sum(weight for _, weight in parts) for parts in combined]),
    )


def grid_posterior(
    grid: Grid,
    base: Numbers,
    alike: Numbers,
    same: Numbers,
    residuals: Numbers,
    own: Numbers,
    clock: Clock,
) -> Numbers:
    """The weights of a grid's combinations after m measurements.

    base: (m, m) covariances without rest and computation; alike, same: (m, m) whether they compute the same, and are the same
    configuration; residuals: (m,) measured logarithms less the expected; own: (m,) their part of the noise; clock: when
    they began.
    """
    rest, computation, noise, drift = (
        np.array([getattr(scales, name) for scales in grid.scales])[:, None, None] ** 2
        for name in ("rest", "computation", "noise", "drift")
    )
    alone = clock.covariance(0.0)
    near = clock.covariance(1.0) - alone

    def logs_of(part: slice) -> Numbers:
        covariance = base + alone + computation[part] * alike + rest[part] * same + drift[part] * near
        covariance = covariance + noise[part] * np.eye(len(base)) + np.diag(own**2)
        covariance += ROUNDING * np.diag(np.diag(base))
        lower = np.linalg.cholesky(covariance)
        white = np.linalg.solve(lower, np.broadcast_to(residuals, (len(lower), len(residuals)))[..., None])[..., 0]
        found: Numbers = (
            grid.log_weights[part] - 0.5 * (white**2).sum(1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
        )
        return found

    count = max(1, AT_ONCE // max(1, base.size))
    parts = [slice(start, start + count) for start in range(0, len(grid.scales), count)]
    logs = np.concatenate([logs_of(part) for part in parts])
    weights: Numbers = np.exp(logs - np.logaddexp.reduce(logs))
    return weights


def representatives(grid: Grid, weights: Numbers) -> list[tuple[Scales, float]]:
    """A few combinations with their weights: one of each rest and computation that counts.

    One that is not likely still counts with its weight: what may be left to gain is mostly its.
    """
    keys = [(scales.rest, scales.computation) for scales in grid.scales]
    chosen: list[tuple[Scales, float]] = []
    for number, key in enumerate(dict.fromkeys(keys)):
        places = np.array([place for place, other in enumerate(keys) if other == key])
        weight = float(weights[places].sum())
        if weight >= LEAST_WEIGHT:
            # Of noise and drift another quantile each time.
            share = (number + 0.5) * GOLDEN % 1.0
            place = places[np.searchsorted(np.cumsum(weights[places]) / weight, share * (1 - 1e-12))]
            chosen.append((grid.scales[place], weight))
    total = sum(weight for _, weight in chosen)
    return [(scales, weight / total) for scales, weight in chosen]


def error_mixture(grid: Grid, weights: Numbers) -> list[tuple[float, float, float]]:
    """(noise, drift, weight) of a grid's combinations: what measurements err by, whatever configurations differ by."""
    summed: dict[tuple[float, float], float] = {}
    for scales, weight in zip(grid.scales, weights, strict=True):
        key = scales.noise, scales.drift
        summed[key] = summed.get(key, 0.0) + float(weight)
    return [(noise, drift, weight) for (noise, drift), weight in summed.items() if weight > NEGLIGIBLE]
