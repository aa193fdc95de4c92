"""What noisy measurements of some points say of others: Gaussian conditioning.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1 and equation 2.30.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import ndtr

Numbers = NDArray[np.float64]


ROUNDING = 1e-9
"""Share of the variances that keeps a matrix of nearly equal points invertible in double precision."""


@dataclass(frozen=True)
class Posterior:
    """n points after the measurements of m others.

    mean, variance: (n,). reach: (m, n), whose products are what the measurements took from the prior's covariances.
    evidence: logarithm of the density of the measurements, to compare priors by.
    """

    mean: Numbers
    variance: Numbers
    reach: Numbers
    evidence: float


def condition(
    mean: Numbers, variance: Numbers, across: Numbers, within: Numbers, residuals: Numbers, noise: Numbers
) -> Posterior:
    """mean, variance: (n,) of the points before. across: (m, n) covariances of what was measured with the points; within:
    (m, m) among themselves. residuals: (m,) measured less their own means before; noise: (m,) standard deviations.
    """
    if not len(residuals):
        return Posterior(mean, variance, np.zeros((0, len(mean))), 0.0)
    held = within + np.diag(noise**2 + ROUNDING * np.diag(within))
    lower = np.linalg.cholesky(held)
    reach = solve_triangular(lower, across, lower=True)
    white = solve_triangular(lower, residuals, lower=True)
    evidence = -0.5 * white @ white - np.log(np.diag(lower)).sum() - 0.5 * len(white) * math.log(2 * math.pi)
    least = 1e-12 * variance
    return Posterior(mean + reach.T @ white, np.maximum(variance - (reach**2).sum(0), least), reach, float(evidence))


def expected_improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """Mean of max(0, value - best) of normal values (Jones, Schonlau and Welch, 1998, equation 15)."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Numbers = (mean - best) * ndtr(z) + deviation * density
    return np.maximum(improvement, 0.0)
