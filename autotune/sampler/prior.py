"""Prior of the costs: what is expected before a study's first probe, with its uncertainty."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from autotune.core.configuration import Value
from autotune.sampler.gp import Numbers
from autotune.sampler.kernel import EffectKernel, Features, Overlap, self_overlap
from autotune.space.settings import CostChange, WorkFactors

MIB = 2.0**20
"""Bytes. Technical: a unit."""


@dataclass(frozen=True)
class MemoryPrior:
    """Deviations of peaks from their estimates: standard deviations, in bytes or as shares of the estimate.

    The defaults are a GPU's. Evidence: reports/gpu.md (an H200) and reports/v100_table.md for offset_bytes and slope: estimates
    err by 10.5 % of a small model's 1.4 GiB, in the mean by 0.7 % of BERT-large's 29 GiB, by 1.3 % of an 8B Llama's 84 GiB and by
    0.9 % on a V100. All others are a guess, and settings differ by more there than value and rest say: on the V100 by 0.5 % in
    float32 and 3.2 % in float16 at one batch size, for the Llama by up to 3.7 %.
    """

    offset_bytes: float = 128 * MIB  # of all configurations together
    value_bytes: float = 16 * MIB  # of each setting's value that is not the baseline's
    slope: float = 0.02  # share, of all together
    value: float = 0.005  # share, of each setting's value that is not the baseline's
    size: float = 0.0  # share, of all at one micro-batch size, and of each such value there
    rest: float = 0.003  # share, of a single configuration
    noise_bytes: float = 2 * MIB  # of two processes of one configuration
    sample_bytes: float = 0.0  # of the samples of the baseline's micro-batch
    mean_offset_bytes: float = 0.0  # expected offset

    def covariance(self, shared: Overlap, one: Features, other: Features, here: Numbers, there: Numbers) -> Numbers:
        """(n, m) of peaks, in MiB squared, of two sets of points with this overlap; here, there: (n,), (m,) estimates."""
        doubled = np.outer(np.exp2(one.doublings), np.exp2(other.doublings))
        return self._of(shared, here[:, None] * there[None, :], doubled)

    def variance(self, one: Features, here: Numbers) -> Numbers:
        """(n,): the diagonal of the covariance with itself."""
        return self._of(self_overlap(one), here**2, np.exp2(2 * one.doublings))

    def _of(self, shared: Overlap, estimates: Numbers, doubled: Numbers) -> Numbers:
        in_mib = (self.offset_bytes**2 + shared.values * self.value_bytes**2 + doubled * self.sample_bytes**2) / MIB**2
        of_estimate = self.slope**2 + shared.values * self.value**2 + shared.same * self.rest**2
        of_estimate = of_estimate + shared.size * (1 + shared.values) * self.size**2
        covariance: Numbers = in_mib + estimates * of_estimate
        return covariance


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
"""Prior on a CPU, where a peak is resident memory, an estimate only what torch allocates, without libraries' pages and the heap's
fragments. Evidence: reports/LOG.md, "What was tried and did not work", for size and rest (3.7 and 1.9 % on one thread) and
"Where constants come from" for value_bytes, noise_bytes, sample_bytes and mean_offset_bytes. Slope, value and offset_bytes are a
guess: the tables are of one machine."""


@dataclass(frozen=True)
class Spread:
    """Standard deviations of the logarithms of scales: how far they may be from the prior's on another device.

    Evidence: reports/LOG.md, "Where constants come from", for rest (around a larger one, REST_DOUBT) and computation, both
    rounded; the noise's is a guess: the tables are of one machine.
    """

    rest: float = 1.0
    computation: float = 1.0
    noise: float = 0.7


class Learned(NamedTuple):
    """Deviation of a value's effect, against the baseline's, from the expected one."""

    deviation: CostChange
    std: CostChange  # its standard deviations


MICRO_STEP = EffectKernel(
    level=2.0, slope=0.05, walk=0.08, value=0.13, growth=0.015, pair=0.008, rest=0.004, computation=0.05, starting=1.6
)
"""Deviations of the logarithm of a micro-step's seconds. Evidence: benchmarks/fit_prior.py; level, as good as unknown, and rest
are a guess. What a micro-step computes explains most of what effects do not."""

OPTIMIZER_STEP = EffectKernel(level=2.0, slope=0.05, walk=0.05, value=0.79, growth=0.02, pair=0.01, rest=0.076)
"""Deviations of the logarithm of an optimizer step's seconds. Evidence: reports/LOG.md, "Where constants come from", for value,
growth, pair and rest; level, slope and walk are a guess."""


UNSURE = 0.2
"""Share of an expected change of a micro-step that may be missing: models differ in it. Evidence: benchmarks/fit_prior.py."""

BELIEVED = 0.42
"""Exponent of how much faster a precision's large matrix products are: a whole micro-step gains less. Evidence:
benchmarks/fit_prior.py."""


@dataclass(frozen=True)
class Prior:
    """Expected costs before the first measurement of a study.

    Evidence: benchmarks/fit_prior.py for kernel_s, believed, unsure and between; reports/LOG.md, "What a search knows of its
    device", for own. half_speed, which a model's own replaces, and optimizer_noise are a guess.
    """

    micro_step: EffectKernel = MICRO_STEP  # of the logarithm of its seconds
    optimizer_step: EffectKernel = OPTIMIZER_STEP
    half_speed: float = 3.0  # micro-batch size at which half of a micro-step is starting kernels (see `roofline`)
    kernel_s: float = 11e-6  # seconds to start one on a CPU
    work: Mapping[str, Mapping[Value, WorkFactors]] = field(
        default_factory=dict
    )  # setting -> value -> factors of the work
    believed: float = BELIEVED  # exponent of how much faster a precision's matrix products are
    unsure: float = UNSURE  # share of an expected change of a micro-step that may be missing
    between: float = 1.0  # noise of two processes, as a multiple of what the steps within one show of it
    own: float = 0.05  # part that a single measurement's steps add to its noise, as a share of what they show
    optimizer_noise: float = 1.3  # factor of the noise of an optimizer's step, which is short
    spread: "Spread | None" = field(
        default_factory=lambda: Spread()
    )  # of the scales that a study learns; None: all known
    memory: MemoryPrior = field(default_factory=MemoryPrior)
    effects: Mapping[str, Mapping[Value, CostChange]] = field(
        default_factory=dict
    )  # setting -> value -> expected effect
    learned: Mapping[str, Mapping[Value, "Learned"]] = field(default_factory=dict)  # the same, of other models here

    def prior_std(self, setting: str, value: Value, base: Value) -> float:
        """Standard deviation of a value's effect against the baseline's, in multiples of `micro_step.value`.

        It grows with the change that is expected of its work, and shrinks by what other models showed.
        """
        if learned := self.learned.get(setting, {}).get(value):
            return learned.std.micro_step / self.micro_step.value
        work, effects = self.work.get(setting, {}), self.effects.get(setting, {})
        change = effects.get(value, CostChange()).micro_step - effects.get(base, CostChange()).micro_step
        if {value, base} <= work.keys():
            change += math.log(work[value].arithmetic / work[base].arithmetic)
        return math.hypot(OUTSIDE if setting == "optimizer" else 1.0, self.unsure * change / self.micro_step.value)


OUTSIDE = 0.05
"""Standard deviation of the optimizer's effect on a micro-step, in which it does not run, in multiples of other settings':
0.7 %. Evidence: reports/LOG.md, "What a search knows of its device": configurations that differ in optimizer and workers alone
differ by no more than two processes of one."""


CUDA_KERNEL_S = 12e-6
"""Seconds to start a kernel on a GPU from Python. Guess, of the order that profiles of eager training show."""

SUSTAINED = 0.5
"""Share of a large matrix product's rate that a whole model's arithmetic reaches. Evidence: reports/gpu.md: on an H200 38.4 and
36.5 % of the data sheet's 989 TFLOP/s, which are 56 and 54 % of the 675 that a product reached there."""


def roofline(flops: float, kernels: float, rate: float, kernel_s: float) -> float:
    """Prior.half_speed: the micro-batch size at which starting a micro-step's kernels takes as long as its arithmetic.

    flops: of one sample's forward and backward. kernels: of a micro-step. rate: operations / second of a large product.
    kernel_s: seconds to start one. Williams, Waterman and Patterson, Roofline, 2009, with kernel starts for memory traffic.
    """
    return kernels * kernel_s * SUSTAINED * rate / max(flops, 1.0)
