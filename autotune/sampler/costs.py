"""Costs of configurations with their uncertainty, and random draws of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from autotune.sampler.clock import Clock
from autotune.sampler.gp import Numbers, Posterior, draw
from autotune.sampler.prior import MIB
from autotune.sampler.scales import Scales

Places = NDArray[np.intp]


@dataclass(frozen=True)
class ExpectedCosts:
    """Expected costs of n configurations; all arrays are (n,)."""

    log_step: Numbers  # expected logarithm of a step's seconds
    deviation: Numbers  # its standard deviation
    log_micro_step: Numbers
    log_optimizer_step: Numbers
    optimizer_share: Numbers  # the optimizer's share of a step
    micro_share: Numbers  # the micro-steps' share; the rest is a slow start's, spread over the run
    peak: Numbers  # bytes, of the next process
    peak_deviation: Numbers  # its standard deviation
    fits: Numbers  # probability of a peak below allowed_bytes
    allowed_bytes: int
    probe_seconds: Numbers
    noise: float  # of the logarithm of a measured micro-step
    noise_bytes: float  # of the next process's peak
    priors: Callable[[Places, Places], "Covariances"]
    times: "Times"
    memory: Posterior

    def drawn(self, chosen: Places, draws: int, seed: int) -> tuple[Numbers, Numbers]:
        """(draws, k) each: random logarithms of step times, and peak bytes of the next processes."""
        rng = np.random.default_rng(seed)
        priors = self.priors(chosen, chosen)
        updates, steps = self.optimizer_share[chosen], self.micro_share[chosen]
        optimizer = _left(priors.optimizer, self.times.optimizer, chosen)
        ends = np.rint(np.cumsum([weight for _, weight, _ in self.times.micro]) * draws).astype(int)
        log_steps = [
            draw(
                self.log_step[chosen] + steps * (part.mean - self.log_micro_step)[chosen],
                np.outer(steps, steps) * _left(priors.micro_with(scales), part, chosen)
                + np.outer(updates, updates) * optimizer,
                count,
                rng,
            )
            for (scales, _, part), count in zip(self.times.micro, np.diff(ends, prepend=0), strict=True)
        ]
        noise = np.diag(np.full(len(chosen), (self.noise_bytes / MIB) ** 2))
        peaks = draw(self.peak[chosen] / MIB, _left(priors.memory, self.memory, chosen) + noise, draws, rng)
        return np.concatenate(log_steps), MIB * peaks

    def posterior_shift(
        self, chosen: Places, at_s: float | None, repeats: Sequence[int], device: str = ""
    ) -> Iterator[tuple[float, Numbers]]:
        """Changes of the expected costs of k configurations by measuring each of them, by scales with their weights.

        at_s, device: time and device of the measurement; None: its time is not known. Yields (2, repeats, k, k): the
        standard deviations, with their signs, by which the expected logarithm of a step's seconds of the one (first) moves once
        the other was measured this number of times, by its micro-step and by its optimizer's.
        """
        priors, times = self.priors(chosen, chosen), self.times
        share = np.array(repeats, float)[:, None, None]

        def now(drift: float) -> tuple[Numbers, float]:
            return times.clock.covariance_now(drift, at_s, device)

        steps, updates = self.micro_share[chosen][:, None], self.optimizer_share[chosen][:, None]
        of_optimizer = updates * _moved(
            _left(priors.optimizer, times.optimizer, chosen),
            times.optimizer,
            chosen,
            now(times.drift),
            times.optimizer_noise**2 / share,
        )
        for scales, weight, part in times.micro:
            left = _left(priors.micro_with(scales), part, chosen)
            of_micro = steps * _moved(left, part, chosen, now(scales.drift), scales.noise**2 / share)
            yield weight, np.stack([of_micro, of_optimizer])


def _moved(left: Numbers, part: Posterior, chosen: Places, now: tuple[Numbers, float], noise: Numbers) -> Numbers:
    """(repeats, k, k): by how much the mean of one place moves for each standard deviation of what is measured of another.

    now: (m,) covariances of what a measurement now errs by with what each earlier one did, and its variance.
    """
    with_earlier, variance_now = now
    # What earlier measurements shown of the device's speed now.
    shown = solve_triangular(part.lower, with_earlier, lower=True) if len(with_earlier) else with_earlier
    shared = part.reach[:, chosen].T @ shown
    covariance = left - shared[:, None]
    variance = np.diag(left) - 2 * shared + max(0.0, variance_now - float(shown @ shown))
    moved: Numbers = covariance / np.sqrt(np.maximum(variance, 1e-18)[None, None, :] + noise)
    return moved


def _left(before: Numbers, part: Posterior, chosen: Places) -> Numbers:
    """(k, k) covariances at these places that the measurements leave."""
    return before - part.reach[:, chosen].T @ part.reach[:, chosen]


class Covariances(NamedTuple):
    """(n, m) each, before any measurement."""

    micro: Numbers  # of the logarithms of a micro-step's seconds, without rest and computation
    optimizer: Numbers  # of the logarithms of the optimizer's step's
    memory: Numbers  # of peaks in MiB
    alike: Numbers  # whether micro-steps compute the same: 0 or 1
    same: Numbers  # whether it is the same configuration

    def micro_with(self, scales: Scales) -> Numbers:
        """Covariance of micro-steps with the rests of these scales."""
        return self.micro + scales.computation**2 * self.alike + scales.rest**2 * self.same


@dataclass(frozen=True)
class Times:
    """Logarithms of seconds after the measurements."""

    micro: list[tuple[Scales, float, Posterior]]  # by scales, with their weights
    optimizer: Posterior
    clock: Clock
    drift: float  # of the machine's speed, over all scales
    optimizer_noise: float  # of the logarithm of the optimizer's step
    errors: list[tuple[float, float, float]]  # (noise, drift, weight): what measurements err by, over all scales

    @property
    def mean(self) -> Numbers:
        return sum(weight * part.mean for _, weight, part in self.micro)  # type: ignore[return-value]

    @property
    def variance(self) -> Numbers:
        """Mean and covariance of a micro-step, over all scales."""
        mean = self.mean
        parts = (weight * (part.variance + (part.mean - mean) ** 2) for _, weight, part in self.micro)
        return sum(parts)  # type: ignore[return-value]
