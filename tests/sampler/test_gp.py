"""Gaussian conditioning against the textbook's closed forms."""

import math

import numpy as np
import pytest
from scipy.stats import truncnorm

from autotune.sampler.gp import at_least, condition, draw, expected_improvement


@pytest.mark.parametrize(("noise", "mean", "variance"), [(2.0, 2.0, 2.0), (1e-9, 3.0, 0.0)])
def test_a_measurement_and_what_was_expected_are_weighed_by_their_precision(
    noise: float, mean: float, variance: float
) -> None:
    """3.0 was measured where 1.0 was expected with variance 4."""
    one, prior = np.array([1.0]), np.array([4.0])
    posterior = condition(one, prior, prior[None], np.array([0]), np.array([2.0]), np.array([noise]))
    assert (posterior.mean[0], posterior.variance[0]) == pytest.approx((mean, variance), abs=1e-6)
    density = -0.5 * 4 / (4 + noise**2) - 0.5 * math.log(2 * math.pi * (4 + noise**2))
    assert posterior.evidence == pytest.approx(density)


def test_expected_improvement_has_its_known_values() -> None:
    at_par, hopeless, sure = expected_improvement(np.array([0.0, -10.0, 10.0]), np.array([1.0, 1.0, 1.0]), 0.0)
    assert at_par == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert hopeless == pytest.approx(0.0, abs=1e-12)
    assert sure == pytest.approx(10.0)


def test_draws_have_their_mean_and_covariance() -> None:
    covariance = np.array([[4.0, 1.0], [1.0, 2.0]])
    drawn = draw(np.array([1.0, -3.0]), covariance, 20000, np.random.default_rng(0))
    assert drawn.mean(0) == pytest.approx([1.0, -3.0], abs=0.05)
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.12)


def test_what_is_one_and_the_same_is_drawn_so_though_rounding_made_its_covariance_indefinite() -> None:
    ones = np.ones((3, 3))
    ones[0, 1] = ones[1, 0] = 1 + 1e-7
    drawn = draw(np.zeros(3), ones, 50, np.random.default_rng(0))
    assert np.isfinite(drawn).all()
    assert np.abs(drawn[:, 0] - drawn[:, 1]).max() < 1e-2
    assert draw(np.zeros(2), np.zeros((2, 2)), 3, np.random.default_rng(0)) == pytest.approx(np.zeros((3, 2)))


@pytest.mark.parametrize("bound", [-3.0, 0.0, 5.0, 9.0, 14.0])
def test_a_least_value_teaches_what_the_truncated_distribution_has(bound: float) -> None:
    mean, variance = 5.0, 4.0
    above = truncnorm((bound - mean) / variance**0.5, np.inf, mean, variance**0.5)
    posterior = at_least(bound, mean, variance)
    if posterior is None:
        assert bound == -3.0, "four deviations below nothing is learned"
        return
    value, noise = posterior
    weight = variance / (variance + noise**2)
    assert mean + weight * (value - mean) == pytest.approx(above.mean())
    assert variance * (1 - weight) == pytest.approx(above.var())
