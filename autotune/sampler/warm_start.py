"""Knowledge before the first probe of a search."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotune.core import Configuration
from autotune.judge.constants import SAME_SPEED
from autotune.memory.peak import MemoryPeak
from autotune.sampler.constants import ASSUMED_SHARE, UNKNOWN_SHARE
from autotune.sampler.prior import MemoryPrior, Prior
from autotune.space.utilization import Arithmetic


@dataclass(frozen=True)
class WarmStart:
    """Knowledge before the first probe of a search."""

    allowed_bytes: int  # of a peak
    estimate: Callable[[Configuration], float] | None = None  # a configuration's peak bytes
    prior: Prior = field(default_factory=Prior)  # of the costs
    margin: float = SAME_SPEED  # share of a gain that is not worth a probe
    unknown: str = ""  # values that could not be determined, and the reason
    core_probes: int = 0  # for a space's core settings before the others (`candidates.stages`)
    training_steps: int | None = None  # of the run to tune for, over which the seconds of its start are spread
    untouched_bytes: int = 0  # that count against the limit and are not part of a peak
    peak: Callable[[Configuration], MemoryPeak | None] = lambda configuration: None  # the estimate by use, if traced
    arithmetic: Arithmetic = field(default_factory=Arithmetic)  # of the model and the device
    padded: Callable[[Configuration], float] = lambda configuration: 1.0  # arithmetic of a sample, see `encode`


def with_estimate(warm_start: WarmStart) -> WarmStart:
    """The same; without an estimate an equal one of every configuration, and a prior of memory as wide."""
    if warm_start.estimate:
        return warm_start
    assumed = ASSUMED_SHARE * warm_start.allowed_bytes
    prior = replace(warm_start.prior, memory=_unknown_memory(warm_start.allowed_bytes))
    return replace(warm_start, estimate=lambda configuration: assumed, prior=prior)


def _unknown_memory(allowed_bytes: int) -> MemoryPrior:
    """Without an estimate: a wide prior (a guess); probes show the growth with the micro-batch."""
    unknown, noise = UNKNOWN_SHARE * allowed_bytes, 0.02 * allowed_bytes
    return MemoryPrior(unknown, slope=1.0, value=0.3, rest=0.02, noise_bytes=noise, sample_bytes=unknown)
