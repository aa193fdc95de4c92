"""Gaussian conditioning against the textbook's closed forms."""

import math

import numpy as np
import pytest

from autotune.gaussian import condition, expected_improvement


def one_point(noise: float) -> tuple[float, float]:
    """Mean and variance after measuring 3.0 where 1.0 was expected with variance 4."""
    found = condition(
        np.array([1.0]), np.array([4.0]), np.array([[4.0]]), np.array([[4.0]]), np.array([2.0]), np.array([noise])
    )
    return float(found.mean[0]), float(found.variance[0])


def test_a_measurement_and_what_was_expected_are_weighed_by_their_precision() -> None:
    mean, variance = one_point(noise=2.0)
    assert mean == pytest.approx(2.0)
    assert variance == pytest.approx(2.0)


def test_a_measurement_without_noise_is_believed() -> None:
    mean, variance = one_point(noise=1e-9)
    assert mean == pytest.approx(3.0)
    assert 0 < variance < 1e-6


def test_a_point_that_shares_nothing_with_the_measured_one_stays_as_it_was() -> None:
    found = condition(
        np.array([1.0, 5.0]),
        np.array([4.0, 9.0]),
        np.array([[4.0, 0.0]]),
        np.array([[4.0]]),
        np.array([2.0]),
        np.array([0.1]),
    )
    assert found.mean[1] == 5.0
    assert found.variance[1] == 9.0


def test_without_measurements_all_stays_as_it_was() -> None:
    nothing = np.zeros(0)
    found = condition(np.array([1.0]), np.array([4.0]), np.zeros((0, 1)), np.zeros((0, 0)), nothing, nothing)
    assert (found.mean, found.variance) == (np.array([1.0]), np.array([4.0]))


def test_the_evidence_is_the_density_of_what_was_measured() -> None:
    found = condition(
        np.array([0.0]), np.array([3.0]), np.array([[3.0]]), np.array([[3.0]]), np.array([2.0]), np.array([1.0])
    )
    assert found.evidence == pytest.approx(-0.5 * 4 / 4 - 0.5 * math.log(2 * math.pi * 4))


def test_expected_improvement_has_its_known_values() -> None:
    at_par, hopeless, sure = expected_improvement(np.array([0.0, -10.0, 10.0]), np.array([1.0, 1.0, 1.0]), 0.0)
    assert at_par == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert hopeless == pytest.approx(0.0, abs=1e-12)
    assert sure == pytest.approx(10.0)
