"""What is expected of costs before a study's first probe, and how far that may be off."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autotune.core.configuration import Value
from autotune.sampler.gp import Numbers
from autotune.sampler.kernel import EffectKernel, Features, Overlap, self_overlap
from autotune.space.settings import Work

MIB = 2.0**20


@dataclass(frozen=True)
class MemoryPrior:
    """How peaks differ from their estimates: standard deviations, in bytes or as shares of the estimate.

    offset_bytes: of all alike; value_bytes: of each setting's value that is not the baseline's. slope, value: the same as
    shares; size: of all alike at one micro-batch size, and of each such value there. sample_bytes: of the samples of the
    baseline's micro-batch. rest: the configuration's own, a share; noise_bytes: of two processes of one. mean_offset_bytes:
    what is expected of the offset.
    """

    offset_bytes: float = 128 * 2.0**20
    value_bytes: float = 16 * 2.0**20
    slope: float = 0.02
    value: float = 0.005
    size: float = 0.0
    rest: float = 0.003
    noise_bytes: float = 2 * 2.0**20
    sample_bytes: float = 0.0
    mean_offset_bytes: float = 0.0

    def covariance(self, shared: Overlap, one: Features, other: Features, here: Numbers, there: Numbers) -> Numbers:
        """(n, m) of peaks, in mebibytes squared, of points that share this; here, there: (n,), (m,) their estimates."""
        doubled = np.outer(np.exp2(one.doublings), np.exp2(other.doublings))
        return self._of(shared, here[:, None] * there[None, :], doubled)

    def variance(self, one: Features, here: Numbers) -> Numbers:
        """(n,): the diagonal of the covariance with itself."""
        return self._of(self_overlap(one), here**2, np.exp2(2 * one.doublings))

    def _of(self, shared: Overlap, estimates: Numbers, doubled: Numbers) -> Numbers:
        in_mib = (self.offset_bytes**2 + shared.values * self.value_bytes**2 + doubled * self.sample_bytes**2) / MIB**2
        of_estimate = self.slope**2 + shared.values * self.value**2 + shared.same * self.rest**2
        of_estimate = of_estimate + shared.size * (1 + shared.values) * self.size**2
        found: Numbers = in_mib + estimates * of_estimate
        return found


CPU_MEMORY = MemoryPrior(
    offset_bytes=30 * MIB,
    value_bytes=9.4 * MIB,
    slope=0.05,
    value=0.05,
    size=0.043,
    rest=0.022,
    noise_bytes=8.4 * MIB,
    sample_bytes=26 * MIB,
    mean_offset_bytes=29 * MIB,
)
"""On a CPU a peak is resident memory, and an estimate only what torch allocates: libraries' own pages come to it, and what the
heap's fragments make of it in this process. Fitted to tables recorded on two threads with the heap as it comes, but for slope
and value, and the offset's deviation, which is that of one machine there; how much of it a micro-batch size shares, as on one
thread (3.7 % beside 1.9 %)."""


class Effect(NamedTuple):
    """What a setting's value is expected to change against other values of the setting: logarithms of how many times the
    seconds of a micro-step and of the optimizer's step, and bytes of the peak beyond what the estimate says."""

    micro_step: float = 0.0
    optimizer_step: float = 0.0
    peak_bytes: float = 0.0


MICRO_STEP = EffectKernel(level=2.0, slope=0.15, walk=0.05, value=0.1, growth=0.016, pair=0.01, rest=0.08)
OPTIMIZER_STEP = EffectKernel(level=2.0, slope=0.05, walk=0.05, value=0.79, growth=0.019, pair=0.02, rest=0.11)
"""Fitted to recorded tables by their evidence (tests/benchmarks/fit_prior.py), but level, slope and walk, and what a
setting's value changes of a micro-step: tables of one processor do not tell how devices differ in what a larger micro-batch wins
them (0.15 is a tenth and a half for each doubling), nor those of four settings what others do (a tenth)."""


@dataclass(frozen=True)
class Prior:
    """What is expected before the first measurement of a study.

    micro_step, optimizer_step: of the logarithms of their seconds. half_speed: the micro-batch size at which half of a
    micro-step is starting kernels, which does not grow with it (see `roofline`); kernel_s: seconds to start one on a CPU of
    several threads (the tables' one thread: 13 microseconds).
    work: setting -> value -> what it makes of both halves and of the optimizer's step. noise: what a measurement's own noise
    is multiplied by; least_noise: what it is at the least, because two processes differ by more than the steps of one.
    effects: setting -> value -> what is expected of it.
    """

    micro_step: EffectKernel = MICRO_STEP
    optimizer_step: EffectKernel = OPTIMIZER_STEP
    half_speed: float = 3.0
    kernel_s: float = 70e-6
    work: Mapping[str, Mapping[Value, Work]] = field(default_factory=dict)
    noise: float = 0.7
    least_noise: float = 0.01
    memory: MemoryPrior = field(default_factory=MemoryPrior)
    effects: Mapping[str, Mapping[Value, Effect]] = field(default_factory=dict)

    def prior_std(self, setting: str, value: Value, own: Value) -> float:
        """How many times `micro_step.value` a value's effect, against the setting's own one, may be off: the more, the larger
        the change that is expected of its work, or was measured on other models."""
        work, effects = self.work.get(setting, {}), self.effects.get(setting, {})
        change = effects.get(value, Effect()).micro_step - effects.get(own, Effect()).micro_step
        if {value, own} <= work.keys():
            change += math.log(work[value].arithmetic / work[own].arithmetic)
        return math.hypot(1.0, UNSURE * change / self.micro_step.value)


UNSURE = 0.5
"""Share of an expected change of a micro-step that may not come: how much of the whole it is differs from model
to model."""

CUDA_KERNEL_S = 12e-6
"""Seconds to start a kernel on a GPU from Python: an assumption, of the order that profiles of eager training show."""

SUSTAINED = 0.5
"""Share of a large matrix product's rate that a whole model's arithmetic reaches where nothing else holds it up: an
assumption; a well-set-up training on one Hopper GPU reaches 35 to 50 % of the data sheet's peak."""


def roofline(flops: float, kernels: float, rate: float, kernel_s: float) -> float:
    """Prior.half_speed: the micro-batch size at which starting a micro-step's kernels takes as long as its arithmetic.

    flops: of one sample's forward and backward. kernels: of a micro-step. rate: operations / second of a large product.
    kernel_s: seconds to start one.
    Williams, Waterman and Patterson, Roofline, 2009, with the start of kernels in the place of memory traffic.
    """
    return kernels * kernel_s * SUSTAINED * rate / max(flops, 1.0)
