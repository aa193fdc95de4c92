"""Scales that a study learns: what repeated probes and likenesses tell of noise and rest."""

import tracemalloc

import numpy as np
import pytest

from autotune.judge.observation import Observation
from autotune.sampler.clock import Clock
from autotune.sampler.constants import DIFFER, DRIFT_PROBES
from autotune.sampler.prior import Prior
from autotune.sampler.scales import grid, grid_posterior, representatives
from tests.sampler.test_cost_model import EVERY, of, seconds, seen
from tests.sampler.test_cost_model import model as cost_model


def learned(errors: list[float], repeats: int) -> tuple[float, float]:
    """Mean rest and noise after configurations that differ by these errors, each measured so often with the next errors."""
    rng = np.random.default_rng(0)
    observations = [
        seen(
            candidate,
            noise=0.01,
            step_s=seconds(candidate) * np.exp(errors[0] * own + errors[1] * rng.standard_normal()),
        )
        for candidate, own in zip(EVERY, rng.standard_normal(len(EVERY)), strict=True)
        for _ in range(repeats)
    ]
    times = cost_model().costs(observations).times
    return tuple(sum(w * getattr(scales, name) for scales, w, _ in times.micro) for name in ("rest", "noise"))  # type: ignore[return-value]


def test_repeated_probes_tell_noise_from_what_configurations_differ_by() -> None:
    restless, uneven = learned([0.0, 0.03], 4), learned([0.1, 0.003], 4)
    assert restless[1] > 3 * uneven[1]
    assert uneven[0] > 2 * restless[0]


def test_known_scales_are_not_learned() -> None:
    prior = Prior(spread=None)
    (known,) = grid(prior, 0.01).scales
    assert (known.rest, known.noise) == (prior.micro_step.rest, prior.between * 0.01)


def test_hundreds_of_measurements_are_weighed_in_little_memory() -> None:
    count = 200
    observations = at(*np.arange(0.0, 5.0 * count, 5.0))
    like, errors = np.ones((count, count)), np.random.default_rng(0).normal(0.0, 0.01, count)
    tracemalloc.start()
    weights = grid_posterior(
        grid(Prior(), 0.01, drifts=True), like, like, like, errors, np.full(count, 0.001), Clock.of(observations)
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert weights.sum() == pytest.approx(1.0)
    assert len(weights) == 400
    chosen = representatives(grid(Prior(), 0.01, drifts=True), weights)
    assert len(chosen) <= 20
    assert sum(weight for _, weight in chosen) == pytest.approx(1.0)
    assert peak_bytes < 2**27, "less than the covariances of all combinations"


def at(*times: float | None, device: str = "", seconds: float = 5.0) -> list[Observation]:
    return [seen(of(4), started_s=time, device=device, seconds=seconds) for time in times]


def test_a_device_forgets_how_fast_it_was_with_the_measurements_in_between() -> None:
    covariance = Clock.of(at(0.0, 5.0, 5.0 + DRIFT_PROBES * 5.0)).covariance(0.1)
    assert np.diag(covariance) == pytest.approx(0.01)
    assert covariance[0, 1] == pytest.approx(0.01 * np.exp(-1 / DRIFT_PROBES))
    assert covariance[1, 2] == pytest.approx(0.01 * np.exp(-1))


def test_devices_drift_apart_and_differ() -> None:
    """They begin together: times between their starts are no times between a device's measurements."""
    clock = Clock.of([*at(0.0, 5.0, device="0"), *at(0.01, 5.02, device="1")])
    covariance = clock.covariance(0.1)
    assert (covariance[:2, 2:] == 0).all()
    for one in (covariance[:2, :2], covariance[2:, 2:]):
        assert np.diag(one) == pytest.approx(0.01 + DIFFER**2)
        assert one[0, 1] == pytest.approx(0.01 * np.exp(-1 / DRIFT_PROBES) + DIFFER**2, rel=1e-3)


def test_what_one_device_errs_by_now_is_shared_with_what_it_measured_lately() -> None:
    clock = Clock.of([*at(0.0, 20.0, device="0"), *at(20.0, device="1")])
    shared, variance = clock.covariance_now(0.1, 25.0, "0")
    assert variance == pytest.approx(0.01 + DIFFER**2)
    assert variance > shared[1] > shared[0] > DIFFER**2
    assert shared[2] == 0.0
    alone, variance = Clock.of(at(0.0, 20.0)).covariance_now(0.1, None, "")
    assert (list(alone), variance) == ([0.0, 0.0], 0.0), "nothing is known of its time"
