"""Scales of a study: how far configurations and repeated probes differ on this device, learned from its own probes.

What constants of one machine cannot tell another: how much two processes of one configuration differ, and how much
configurations differ beyond the effects of their settings. Each combination of scales on a grid is weighed by the density of
the micro-steps that were measured, times its prior (Rasmussen and Williams, 2006, section 5.2); a few of them, drawn by their
weights, stand for all, so that a search is as unsure of its scales as its probes leave it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from autotune.sampler.gp import ROUNDING, Numbers
from autotune.sampler.prior import Prior

NODES = ((-2.0, -1.0, 0.0, 1.0, 2.0), (-1.5, -0.5, 0.5, 1.5))
"""Of the grid, in standard deviations of a scale's logarithm: of rest and noise, and of a computation's own."""

FEW = 8
"""Combinations that stand for all."""


@dataclass(frozen=True)
class Scales:
    """Standard deviations of logarithms of seconds."""

    rest: float  # of a configuration's own micro-step
    computation: float  # of what a micro-step computes
    noise: float  # of two processes of one configuration


@dataclass(frozen=True)
class Grid:
    """Combinations of scales and the logarithms of their prior weights."""

    scales: tuple[Scales, ...]
    log_weights: Numbers


def grid(prior: Prior, within: float) -> Grid:
    """The combinations to weigh. within: usual noise of a measurement by the steps within it."""
    if not prior.spread:
        return Grid((Scales(prior.micro_step.rest, prior.micro_step.computation, prior.between * within),), np.zeros(1))

    def around(median: float, spread: float, nodes: tuple[float, ...]) -> Iterator[tuple[float, float]]:
        return ((median * math.exp(spread * node), -0.5 * node**2) for node in nodes)

    kernel, spread = prior.micro_step, prior.spread
    combined = list(
        product(
            around(kernel.rest, spread.rest, NODES[0]),
            around(kernel.computation, spread.computation, NODES[1]),
            around(prior.between * within, spread.noise, NODES[0]),
        )
    )
    return Grid(
        tuple(Scales(rest, computation, noise) for (rest, _), (computation, _), (noise, _) in combined),
        np.array([sum(weight for _, weight in parts) for parts in combined]),
    )


def weigh(grid: Grid, base: Numbers, alike: Numbers, same: Numbers, residuals: Numbers, own: Numbers) -> Numbers:
    """The weights of a grid's combinations after m measurements.

    base: (m, m) covariances without rest and computation; alike, same: (m, m) whether they compute the same, and are the same
    configuration; residuals: (m,) measured logarithms less the expected; own: (m,) their own part of the noise.
    """
    rest, computation, noise = (
        np.array([getattr(scales, name) for scales in grid.scales])[:, None, None] ** 2
        for name in ("rest", "computation", "noise")
    )
    covariance = base + computation * alike + rest * same + noise * np.eye(len(base)) + np.diag(own**2)
    covariance += ROUNDING * np.diag(np.diag(base))
    lower = np.linalg.cholesky(covariance)
    white = np.linalg.solve(lower, np.broadcast_to(residuals, (len(lower), len(residuals)))[..., None])[..., 0]
    logs = grid.log_weights - 0.5 * (white**2).sum(1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)
    weights: Numbers = np.exp(logs - np.logaddexp.reduce(logs))
    return weights


def few(grid: Grid, weights: Numbers) -> list[tuple[Scales, float]]:
    """At most FEW combinations with their weights: the quantiles of all, ordered by rest."""
    order = np.argsort([scales.rest for scales in grid.scales], kind="stable")
    chosen = order[np.searchsorted(np.cumsum(weights[order]), (np.arange(FEW) + 0.5) / FEW * (1 - 1e-12))]
    places, counts = np.unique(chosen, return_counts=True)
    return [(grid.scales[place], count / FEW) for place, count in zip(places, counts, strict=True)]
