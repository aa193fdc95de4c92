"""Step time and memory of every configuration, before and after each measurement, with how far they may be off.

    what is known beforehand ─┐                     ┌─> seconds of a step = accumulation x micro-step + optimizer's step
    Observations of probes ───┴─> CostModel.costs() ┼─> peak bytes, and how likely they fit
                                                    └─> seconds of a probe

A micro-step and the optimizer's step are modelled apart, each by the logarithm of its seconds: an optimizer that is slow
matters little where it steps seldom, and no product of factors says that. Memory is the estimate, corrected by an offset
and a slope that the probes tell.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.configuration import Configuration, Value
from autotune.gaussian import Numbers, Posterior, condition
from autotune.levers import Work
from autotune.likeness import Encoded, Likeness, Shared, encode, shared_by, shared_with_itself
from autotune.observation import Observation

PROBE_START_S, PROBE_STEPS = 2.0, 8.0
"""Seconds of a probe outside its steps, and its steps, before any probe was seen."""

PROBE_MICRO_STEPS = 3
"""Micro-steps that a probe runs of each step: the rest is composed."""

BEYOND = 1.005
"""An out-of-memory that was not foreseen counts as a peak of so many times what was held and refused, at the least."""

MIB = 2.0**20

LEAST_PEAK = 0.25
"""Share of its estimate below which no peak is believed to lie, whatever a straight line says far from what was measured."""

Places = NDArray[np.intp]


@dataclass(frozen=True)
class MemoryPrior:
    """How peaks differ from their estimates: standard deviations, in bytes or as shares of the estimate.

    offset_bytes: of all alike; value_bytes: of each lever's value that is not the baseline's. slope, value: the same as
    shares. sample_bytes: of the samples of the baseline's micro-batch. rest: the configuration's own, a share;
    noise_bytes: of two processes of one. mean_offset_bytes: what is expected of the offset.
    """

    offset_bytes: float = 128 * 2.0**20
    value_bytes: float = 16 * 2.0**20
    slope: float = 0.02
    value: float = 0.005
    rest: float = 0.003
    noise_bytes: float = 2 * 2.0**20
    sample_bytes: float = 0.0
    mean_offset_bytes: float = 0.0

    def covariance(self, one: Encoded, other: Encoded, here: Numbers, there: Numbers) -> Numbers:
        """(n, m) of peaks, in mebibytes squared; here, there: (n,), (m,) their estimates, in mebibytes."""
        doubled = np.outer(np.exp2(one.doublings), np.exp2(other.doublings))
        return self._of(shared_by(one, other), here[:, None] * there[None, :], doubled)

    def variance(self, one: Encoded, here: Numbers) -> Numbers:
        """(n,): the diagonal of the covariance with itself."""
        return self._of(shared_with_itself(one), here**2, np.exp2(2 * one.doublings))

    def _of(self, shared: Shared, estimates: Numbers, doubled: Numbers) -> Numbers:
        in_mib = (self.offset_bytes**2 + shared.open * self.value_bytes**2 + doubled * self.sample_bytes**2) / MIB**2
        of_estimate = self.slope**2 + shared.values * self.value**2 + shared.same * self.rest**2
        found: Numbers = in_mib + estimates * of_estimate
        return found


CPU_MEMORY = MemoryPrior(
    offset_bytes=30 * MIB,
    value_bytes=27 * MIB,
    slope=0.05,
    value=0.05,
    rest=0.05,
    noise_bytes=9 * MIB,
    sample_bytes=27 * MIB,
    mean_offset_bytes=31 * MIB,
)
"""On a CPU a peak is resident memory, and an estimate only what torch allocates: libraries' own pages come to it, and what the
heap's fragments make of it in this process. Fitted to recorded tables, but for slope and value, and the
offset's deviation, which is that of one machine there."""


class Effect(NamedTuple):
    """What a lever's value is expected to change against other values of the lever: logarithms of how many times the
    seconds of a micro-step and of the optimizer's step, and bytes of the peak beyond what the estimate says."""

    micro_step: float = 0.0
    optimizer_step: float = 0.0
    peak_bytes: float = 0.0


MICRO_STEP = Likeness(level=2.0, slope=0.15, walk=0.05, value=0.072, growth=0.021, pair=0.02, rest=0.078)
OPTIMIZER_STEP = Likeness(level=2.0, slope=0.05, walk=0.05, value=0.91, growth=0.017, pair=0.042, rest=0.11)
"""Fitted to recorded tables by their evidence (tests/benchmarks/fit_prior.py), but level, slope and walk: tables of one
processor do not tell how devices differ in what a larger micro-batch wins them; 0.15 is a tenth and a half for each doubling."""


@dataclass(frozen=True)
class Prior:
    """What is expected before the first measurement of a study.

    micro_step, optimizer_step: of the logarithms of their seconds. half_speed: the micro-batch size at which half of a
    micro-step is starting kernels, which does not grow with it (see `roofline`); kernel_s: seconds to start one on a CPU.
    work: lever -> value -> what it makes of both halves. noise: what a measurement's own noise is multiplied by;
    least_noise: what it is at the least, because two processes differ by more than the steps of one.
    effects: lever -> value -> what is expected of it. recalled: values of these levers were measured in other studies on
    this device; of them the deviations count only by the share `recalled_doubt`.
    """

    micro_step: Likeness = MICRO_STEP
    optimizer_step: Likeness = OPTIMIZER_STEP
    half_speed: float = 3.0
    kernel_s: float = 70e-6
    work: Mapping[str, Mapping[Value, Work]] = field(default_factory=dict)
    noise: float = 0.88
    least_noise: float = 0.01
    memory: MemoryPrior = field(default_factory=MemoryPrior)
    recalled_doubt: float = 0.5
    effects: Mapping[str, Mapping[Value, Effect]] = field(default_factory=dict)
    recalled: frozenset[tuple[str, Value]] = frozenset()

    def doubt(self, lever: str, value: Value) -> float:
        return self.recalled_doubt if (lever, value) in self.recalled else 1.0


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


@dataclass(frozen=True)
class Costs:
    """What n configurations cost, as far as it is known.

    log_step: (n,) expected logarithm of a step's seconds; deviation: (n,) its standard deviation.
    log_micro_step, log_optimizer_step: (n,) the same of its parts. optimizer_share: (n,) the optimizer's part of it.
    peak, peak_deviation: (n,) bytes, of the next process. fits: (n,) probabilities.
    probe_seconds: (n,).
    """

    log_step: Numbers
    deviation: Numbers
    log_micro_step: Numbers
    log_optimizer_step: Numbers
    optimizer_share: Numbers
    peak: Numbers
    peak_deviation: Numbers
    fits: Numbers
    probe_seconds: Numbers
    _parts: tuple[tuple[Numbers, Likeness, Posterior], ...]
    _points: Encoded

    def covariance(self, chosen: Places) -> Numbers:
        """(k, k) of the logarithms of the step times of some configurations, given by their places."""
        points = self._points[chosen]
        total = np.zeros((len(chosen), len(chosen)))
        for share, likeness, posterior in self._parts:
            reach = posterior.reach[:, chosen]
            weights = np.outer(share[chosen], share[chosen])
            total += weights * (likeness.covariance(points, points) - reach.T @ reach)
        return total


class CostModel:
    """Costs of a fixed set of configurations, the baseline and all that are measured among them.

    values: the levers of the space and all their values. estimate: a configuration's peak bytes before any probe.
    allowed_bytes: what a training may use.
    """

    def __init__(
        self,
        configurations: Sequence[Configuration],
        values: Mapping[str, Sequence[Value]],
        baseline: Configuration,
        prior: Prior,
        estimate: Callable[[Configuration], float],
        allowed_bytes: int,
    ) -> None:
        self.configurations = list(configurations)
        self.place = {one: at for at, one in enumerate(self.configurations)}
        self.prior, self.allowed_bytes, self.baseline = prior, allowed_bytes, baseline
        self.points = encode(self.configurations, values, baseline, prior.doubt)
        self.estimates = np.array([estimate(one) for one in self.configurations], float) / MIB
        self._expected = _expected(self.points, values, baseline, prior)

    def costs(self, observations: Sequence[Observation]) -> Costs:
        """What every configuration costs, by what is known beforehand and by these observations."""
        micro, optimizer = self._times(observations)
        all_micro = np.log(self.points.accumulation) + micro.mean
        log_step = np.logaddexp(all_micro, optimizer.mean)
        share = np.exp(all_micro - log_step)
        variance = share**2 * micro.variance + (1 - share) ** 2 * optimizer.variance
        memory = self._memory(observations)
        deviation = np.sqrt(memory.variance + (self.prior.memory.noise_bytes / MIB) ** 2)
        peak = np.maximum(memory.mean, LEAST_PEAK * self.estimates)
        run = np.minimum(self.points.accumulation, PROBE_MICRO_STEPS) * np.exp(micro.mean) + np.exp(optimizer.mean)
        starting, steps = _probing(observations)
        return Costs(
            log_step,
            np.sqrt(variance),
            micro.mean,
            optimizer.mean,
            1 - share,
            peak * MIB,
            deviation * MIB,
            ndtr((self.allowed_bytes / MIB - peak) / deviation),
            starting + steps * run,
            ((share, self.prior.micro_step, micro), (1 - share, self.prior.optimizer_step, optimizer)),
            self.points,
        )

    def evidence(self, observations: Sequence[Observation], part: str) -> float:
        """Logarithm of the density of what was observed of a part: micro_step, optimizer_step or memory."""
        if part == "memory":
            return self._memory(observations).evidence
        return self._times(observations)[part == "optimizer_step"].evidence

    def _times(self, observations: Sequence[Observation]) -> tuple[Posterior, Posterior]:
        """Logarithms of the seconds of a micro-step, and of the optimizer's step."""
        timed = [one for one in observations if one.micro_step_s is not None]
        at = np.array([self.place[one.configuration] for one in timed], np.intp)
        noise = np.array([max(self.prior.noise * one.noise, self.prior.least_noise) for one in timed])
        tokens = _longer_samples(timed)
        micro_steps = np.log([one.micro_step_s or 1.0 for one in timed]) - tokens
        optimizer_steps = np.log([_optimizer_s(one) for one in timed])
        return self._conditioned(0, at, micro_steps, noise), self._conditioned(1, at, optimizer_steps, noise)

    def _conditioned(self, part: int, at: Places, logarithms: Numbers, noise: Numbers) -> Posterior:
        likeness = (self.prior.micro_step, self.prior.optimizer_step)[part]
        measured, expected = self.points[at], self._expected[:, part]
        across = likeness.covariance(measured, self.points)
        return condition(
            expected, likeness.variance(self.points), across, across[:, at], logarithms - expected[at], noise
        )

    def _memory(self, observations: Sequence[Observation]) -> Posterior:
        """Peaks, in mebibytes."""
        prior = self.prior.memory
        mean = (prior.mean_offset_bytes + self._expected[:, 2]) / MIB + self.estimates
        variance = prior.variance(self.points, self.estimates)

        def given(seen: list[tuple[int, float]]) -> Posterior:
            at = np.array([place for place, _ in seen], np.intp)
            own = self.estimates[at]
            across = prior.covariance(self.points[at], self.points, own, self.estimates)
            residuals = np.array([peak for _, peak in seen]) - mean[at]
            return condition(
                mean, variance, across, across[:, at], residuals, np.full(len(at), prior.noise_bytes / MIB)
            )

        seen = [(self.place[o.configuration], o.peak_bytes / MIB) for o in observations if o.peak_bytes]
        posterior = given(seen)
        for one in observations:
            # Out of memory says "at least so much": that counts only where less was expected.
            place, least = self.place[one.configuration], (one.wanted_bytes or 0) / MIB
            if posterior.mean[place] < least:
                seen.append((place, BEYOND * least))
                posterior = given(seen)
        return posterior


def _expected(points: Encoded, values: Mapping[str, Sequence[Value]], baseline: Configuration, prior: Prior) -> Numbers:
    """(n, 3): expected logarithms of the seconds of a micro-step and of the optimizer's, up to a constant; bytes beyond
    the estimate."""
    found = np.zeros((len(points), 3))
    arithmetic, kernels = points.micro.copy(), np.full(len(points), prior.half_speed)
    own = baseline.values
    for column, name in enumerate(name for name in values if name != "micro_batch_size"):
        effects = prior.effects.get(name, {})
        zero = np.array(effects.get(own[name], Effect()))
        ordered = [own[name], *(value for value in values[name] if value != own[name])]
        of_code = [np.array(effects[value]) - zero if value in effects else np.zeros(3) for value in ordered]
        found += np.array(of_code)[points.codes[:, column]]
        if known := prior.work.get(name):
            works = np.array([known.get(value, Work()) for value in ordered])[points.codes[:, column]]
            arithmetic, kernels = arithmetic * works[:, 0], kernels * works[:, 1]
    found[:, 0] += np.log(kernels + arithmetic)
    return found


def _optimizer_s(one: Observation) -> float:
    """The optimizer's part; no less than a ten-thousandth of the step, which is nothing."""
    return max(one.optimizer_step_s, (one.step_s or 1.0) / 1e4)


def _longer_samples(timed: Sequence[Observation]) -> Numbers:
    """Logarithm of the tokens of each one's steps over the first one's: steps of longer samples are no slower ones."""
    first = timed[0].tokens if timed else 0.0
    return np.array([np.log(one.tokens / first) if first and one.tokens else 0.0 for one in timed])


def _probing(observations: Sequence[Observation]) -> tuple[float, float]:
    """(seconds outside its steps, steps) of a probe."""
    timed = [one for one in observations if one.steps]
    if not timed:
        return PROBE_START_S, PROBE_STEPS
    return median(one.starting_s for one in timed), median(one.steps for one in timed)
