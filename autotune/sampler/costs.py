"""Costs of configurations with their uncertainty, and random draws of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.sampler.gp import Numbers, Posterior, draw
from autotune.sampler.prior import MIB
from autotune.sampler.scales import Scales

Places = NDArray[np.intp]


@dataclass(frozen=True)
class Costs:
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
        log_steps = [
            draw(
                self.log_step[chosen] + steps * (part.mean - self.log_micro_step)[chosen],
                np.outer(steps, steps) * _left(priors.micro_with(scales), part, chosen)
                + np.outer(updates, updates) * optimizer,
                round(weight * draws),
                rng,
            )
            for scales, weight, part in self.times.micro
        ]
        noise = np.diag(np.full(len(chosen), (self.noise_bytes / MIB) ** 2))
        peaks = draw(self.peak[chosen] / MIB, _left(priors.memory, self.memory, chosen) + noise, draws, rng)
        return np.concatenate(log_steps), MIB * peaks


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
        """With the rests of these scales."""
        return self.micro + scales.computation**2 * self.alike + scales.rest**2 * self.same


@dataclass(frozen=True)
class Times:
    """Logarithms of seconds after the measurements."""

    micro: list[tuple[Scales, float, Posterior]]  # by scales, with their weights
    optimizer: Posterior

    @property
    def mean(self) -> Numbers:
        return sum(weight * part.mean for _, weight, part in self.micro)  # type: ignore[return-value]

    @property
    def variance(self) -> Numbers:
        """Of a micro-step, over all scales."""
        mean = self.mean
        parts = (weight * (part.variance + (part.mean - mean) ** 2) for _, weight, part in self.micro)
        return sum(parts)  # type: ignore[return-value]
