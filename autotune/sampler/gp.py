"""Gaussian conditioning: noisy measurements of some points, and what follows for others.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1 and equation 2.30.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LITTLE = 1e-4
"""Share of a variance below which an observation changes nothing. Technical: keeps the equivalent measurement finite."""

ROUNDING = 1e-9
"""Share of the variances that keeps a matrix of nearly equal points invertible. Technical: of double precision."""


@dataclass(frozen=True)
class Posterior:
    """n points after the measurements of m others."""

    mean: Numbers  # (n,)
    variance: Numbers  # (n,)
    reach: Numbers  # (m, n); its products are what the measurements subtract from the prior's covariances
    evidence: float  # logarithm of the density of the measurements, to compare priors by
    places: NDArray[np.intp]  # (m,) of the measured points
    lower: Numbers  # (m, m) Cholesky factor of the measurements' covariance
    white: Numbers  # (m,) what was measured, in units of that factor

    def of(self, covariances: Numbers) -> tuple[float, float]:
        """(mean, variance lost) of something else with prior mean 0 and these covariances (m,) with the measured points."""
        if not len(self.places):
            return 0.0, 0.0
        from scipy.linalg import solve_triangular

        reach = solve_triangular(self.lower, covariances, lower=True)
        return float(reach @ self.white), float(reach @ reach)


def condition(
    mean: Numbers,
    variance: Numbers,
    across: Numbers,
    places: NDArray[np.intp],
    residuals: Numbers,
    noise: Numbers,
    common: Numbers | float = 0.0,
) -> Posterior:
    """The posterior of n points after m measurements.

    mean, variance: (n,) prior. across: (m, n) covariances of the measured points, which are at these places, with all.
    residuals: (m,) measured values less their prior means; noise: (m,) standard deviations. common: (m, m) covariances of
    what the measurements err by together.
    """
    if not len(residuals):
        none = np.zeros(0)
        return Posterior(mean, variance, np.zeros((0, len(mean))), 0.0, places, np.zeros((0, 0)), none)
    from scipy.linalg import solve_triangular  # not loaded by claims, which every report makes

    within = across[:, places]
    held = within + common + np.diag(noise**2 + ROUNDING * np.diag(within))
    lower = np.linalg.cholesky(held)
    reach = solve_triangular(lower, across, lower=True)
    factor: Numbers = np.asarray(lower, np.float64)
    white: Numbers = solve_triangular(lower, residuals, lower=True)
    evidence = -0.5 * white @ white - np.log(np.diag(lower)).sum() - 0.5 * len(white) * math.log(2 * math.pi)
    least = 1e-12 * variance
    return Posterior(
        mean + reach.T @ white,
        np.maximum(variance - (reach**2).sum(0), least),
        reach,
        float(evidence),
        places,
        factor,
        white,
    )


def at_least(bound: float, mean: float, variance: float) -> tuple[float, float] | None:
    """(value, noise) of the measurement that tells a normal value as much as "at least bound".

    It gives the same posterior mean and variance; None if that changes nothing.

    Moments of the truncated normal distribution, as in expectation propagation (Minka, 2001): with z = (bound - mean) /
    deviation and h = density(z) / P(above z) the mean rises by h deviations, and the variance falls by h (h - z) of itself.
    """
    from scipy.special import log_ndtr

    deviation = math.sqrt(variance)
    z = (bound - mean) / deviation
    h = math.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - float(log_ndtr(-z)))
    drop = h * (h - z)
    if drop < LITTLE:
        return None
    drop = min(drop, 1 - LITTLE)
    return mean + h * deviation / drop, deviation * math.sqrt((1 - drop) / drop)


def draw(mean: Numbers, covariance: Numbers, count: int, rng: np.random.Generator) -> Numbers:
    """(count, k) draws of normal values of this mean (k,) and covariance (k, k)."""
    held = covariance + np.diag(ROUNDING * np.diag(covariance) + np.finfo(np.float64).tiny)
    try:
        factor = np.linalg.cholesky(held)
    except np.linalg.LinAlgError:  # points that the measurements determine
        values, vectors = np.linalg.eigh(covariance)
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn: Numbers = mean + rng.standard_normal((count, len(mean))) @ factor.T
    return drawn


def expected_improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """Mean of max(0, value - best) of normal values (Jones, Schonlau and Welch, 1998, equation 15)."""
    from scipy.special import ndtr

    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Numbers = (mean - best) * ndtr(z) + deviation * density
    return np.maximum(improvement, 0.0)
