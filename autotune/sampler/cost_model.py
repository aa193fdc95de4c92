"""Step time and memory of every configuration with their uncertainty, before and after each measurement.

    prior and estimates ──────┐                     ┌─> seconds of a step = accumulation x micro-step + optimizer's step
    Observations of probes ───┴─> CostModel.costs() ┼─> peak bytes, and how likely they fit
                                                    └─> seconds of a probe

A micro-step and the optimizer's step are modelled apart, each by the logarithm of its seconds: a slow optimizer matters
little where it steps seldom, which no product of factors expresses. Memory is the estimate, corrected by an offset and a
slope learned from the probes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from autotune.core.configuration import Configuration, Value
from autotune.sampler.gp import Numbers, Posterior, at_least, condition, draw
from autotune.sampler.kernel import Features, Overlap, encode, overlap_of, self_overlap
from autotune.sampler.observation import Observation
from autotune.sampler.prior import MIB, Effect, Prior
from autotune.space.settings import SETTINGS, Work

PROBE_START_S, PROBE_STEPS = 2.0, 8.0
"""Seconds of a probe outside its steps, and its steps, before any probe."""

PROBE_MICRO_STEPS = 3
"""Micro-steps that a probe runs of each step: the rest is composed."""

LEAST_PEAK = 0.25
"""Share of its estimate below which no peak is predicted, whatever the slope says far from the measurements."""

Places = NDArray[np.intp]

SlowStart = tuple[tuple[str, Value], ...]
"""The values of a configuration that make a training's start slow."""


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
    _model: "CostModel"
    _parts: tuple[Posterior, Posterior, Posterior]

    def covariances(self, chosen: Places) -> tuple[Numbers, Numbers]:
        """(k, k) each, at these places: of the logarithms of step times, and of peaks in MiB without a process's own noise."""
        within = self._model.prior_covariances(chosen, chosen)
        micro, optimizer, memory = (
            before - part.reach[:, chosen].T @ part.reach[:, chosen]
            for before, part in zip(within, self._parts, strict=True)
        )
        updates, steps = self.optimizer_share[chosen], self.micro_share[chosen]
        return np.outer(steps, steps) * micro + np.outer(updates, updates) * optimizer, memory

    def drawn(self, chosen: Places, draws: int, seed: int) -> tuple[Numbers, Numbers]:
        """(draws, k) each: random logarithms of step times, and peak bytes of the next processes."""
        rng = np.random.default_rng(seed)
        of_steps, of_peaks = self.covariances(chosen)
        noise = np.diag(np.full(len(chosen), (self._model.prior.memory.noise_bytes / MIB) ** 2))
        log_steps = draw(self.log_step[chosen], of_steps, draws, rng)
        return log_steps, MIB * draw(self.peak[chosen] / MIB, of_peaks + noise, draws, rng)


class CostModel:
    """Costs of a fixed set of configurations, which includes the baseline and all that are measured.

    values: all values of each setting of the space. estimate: a configuration's peak bytes before any probe.
    allowed_bytes: what a training may use. untouched_bytes: what counts against the limit and is not part of a peak.
    training_steps: over which the seconds of a slow start (compiling) are spread.
    """

    def __init__(
        self,
        configurations: Sequence[Configuration],
        values: Mapping[str, Sequence[Value]],
        baseline: Configuration,
        prior: Prior,
        estimate: Callable[[Configuration], float],
        allowed_bytes: int,
        training_steps: int | None = None,
        untouched_bytes: int = 0,
    ) -> None:
        self.configurations, self.training_steps = list(configurations), training_steps
        self.prior, self.allowed_bytes, self.untouched_bytes = prior, allowed_bytes, untouched_bytes
        self.baseline = baseline
        self.place = {configuration: place for place, configuration in enumerate(self.configurations)}
        self._slow_starts = [_slow_start(configuration) for configuration in self.configurations]
        base = baseline.values
        self.points = encode(
            self.configurations, values, baseline, lambda setting, value: prior.prior_std(setting, value, base[setting])
        )
        settings = [name for name in values if name != "micro_batch_size"]
        # Configurations that differ only in settings without memory use have one peak.
        self._memory_points = self.points.only(
            [i for i, name in enumerate(settings) if "memory" in SETTINGS[name].changes]
        )
        self.estimates = np.array([estimate(configuration) for configuration in self.configurations], float) / MIB
        self._expected = _expected(self.points, values, baseline, prior)
        self._rows: dict[int, tuple[Numbers, Numbers, Numbers]] = {}

    @cached_property
    def _variances(self) -> tuple[Numbers, Numbers, Numbers]:
        prior, points = self.prior, self.points
        shared = self_overlap(points)
        times = (prior.micro_step.variance(shared, points), prior.optimizer_step.variance(_usual(shared), points))
        return *times, prior.memory.variance(self._memory_points, self.estimates)

    def costs(self, observations: Sequence[Observation]) -> Costs:
        """The costs of every configuration after these observations."""
        micro, optimizer = self._times(observations)
        all_micro = np.log(self.points.accumulation) + micro.mean
        slow_start = self._slow_start_s(observations)
        log_step = np.logaddexp(all_micro, optimizer.mean)
        if self.training_steps:
            log_step = np.log(np.exp(log_step) + slow_start / self.training_steps)
        share, of_optimizer = np.exp(all_micro - log_step), np.exp(optimizer.mean - log_step)
        variance = share**2 * micro.variance + of_optimizer**2 * optimizer.variance
        memory = self._memory(observations)
        deviation = np.sqrt(memory.variance + (self.prior.memory.noise_bytes / MIB) ** 2)
        peak = np.maximum(memory.mean, LEAST_PEAK * self.estimates)
        # A feasible peak did fit.
        allowed = max([self.allowed_bytes, *(seen.peak_bytes or 0 for seen in observations if seen.feasible)])
        run = np.minimum(self.points.accumulation, PROBE_MICRO_STEPS) * np.exp(micro.mean) + np.exp(optimizer.mean)
        starting, steps = _probing(observations)
        return Costs(
            log_step,
            np.sqrt(variance),
            micro.mean,
            optimizer.mean,
            of_optimizer,
            share,
            peak * MIB,
            deviation * MIB,
            ndtr((allowed / MIB - peak) / deviation),
            allowed,
            starting + slow_start + steps * run,
            self,
            (micro, optimizer, memory),
        )

    def _slow_start_s(self, observations: Sequence[Observation]) -> Numbers:
        """(n,): seconds of a probe and of a run before their first settled step, as the settings expect until measured."""
        measured: dict[SlowStart, list[float]] = {}
        for seen in observations:
            if seen.compile_s:
                measured.setdefault(_slow_start(seen.configuration), []).append(seen.compile_s)
        seconds = {key: sum(SETTINGS[name].seconds(value) for name, value in key) for key in set(self._slow_starts)}
        seconds |= {key: median(times) for key, times in measured.items() if key}
        return np.array([seconds[key] for key in self._slow_starts])

    def prior_covariances(self, here: Places, there: Places | None = None) -> tuple[Numbers, Numbers, Numbers]:
        """(n, m) each, before any measurement, by default with all places: of the logarithms of the seconds of a micro-step
        and of the optimizer's step, and of peaks in MiB."""
        prior, there = self.prior, np.arange(len(self.points)) if there is None else there
        points = self.points[here], self.points[there]
        of_memory = self._memory_points[here], self._memory_points[there]
        shared = overlap_of(*points)
        return (
            prior.micro_step.covariance(shared, *points),
            prior.optimizer_step.covariance(_usual(shared), *points),
            prior.memory.covariance(overlap_of(*of_memory), *of_memory, self.estimates[here], self.estimates[there]),
        )

    def evidence(self, observations: Sequence[Observation], part: str) -> float:
        """Logarithm of the density of the observations of a part: micro_step, optimizer_step or memory."""
        if part == "memory":
            return self._memory(observations).evidence
        return self._times(observations)[part == "optimizer_step"].evidence

    def _times(self, observations: Sequence[Observation]) -> tuple[Posterior, Posterior]:
        """Logarithms of the seconds of a micro-step, and of the optimizer's step."""
        timed = [seen for seen in observations if seen.micro_step_s is not None]
        places = [self.place[seen.configuration] for seen in timed]
        noise = np.array([max(self.prior.noise * seen.noise, self.prior.least_noise) for seen in timed])
        micro_steps = np.log([seen.micro_step_s or 1.0 for seen in timed]) - _longer_samples(timed)
        optimizer_steps = np.log([_optimizer_s(seen) for seen in timed])
        return (
            self._conditioned(0, self._expected[:, 0], places, micro_steps, noise),
            self._conditioned(1, self._expected[:, 1], places, optimizer_steps, noise),
        )

    def _memory(self, observations: Sequence[Observation]) -> Posterior:
        """Peaks, in MiB."""
        prior, noise = self.prior.memory, self.prior.memory.noise_bytes / MIB
        mean = (prior.mean_offset_bytes + self._expected[:, 2]) / MIB + self.estimates

        def given(peaks: list[tuple[int, float, float]]) -> Posterior:
            places, sizes, noises = zip(*peaks, strict=True) if peaks else ((), (), ())
            return self._conditioned(2, mean, list(places), np.array(sizes), np.array(noises))

        peaks = [(self.place[o.configuration], o.peak_bytes / MIB, noise) for o in observations if o.peak_bytes]
        posterior = given(peaks)
        for seen in observations:
            if seen.wanted_bytes:  # out of memory: at least so much
                place, wanted = self.place[seen.configuration], seen.wanted_bytes - self.untouched_bytes
                variance = float(posterior.variance[place]) + noise**2
                if equivalent := at_least(wanted / MIB, float(posterior.mean[place]), variance):
                    peaks.append((place, equivalent[0], math.hypot(equivalent[1], noise)))
                    posterior = given(peaks)
        return posterior

    def _conditioned(self, part: int, mean: Numbers, places: list[int], measured: Numbers, noise: Numbers) -> Posterior:
        """All points, given the measurements at some places."""
        if fresh := [place for place in dict.fromkeys(places) if place not in self._rows]:
            rows = zip(*self.prior_covariances(np.array(fresh, np.intp)), strict=True)
            self._rows.update(zip(fresh, rows, strict=True))
        across = np.array([self._rows[place][part] for place in places]).reshape(len(places), len(mean))
        return condition(mean, self._variances[part], across, across[:, places], measured - mean[places], noise)


def _slow_start(configuration: Configuration) -> SlowStart:
    return tuple((name, value) for name, value in configuration.settings if SETTINGS[name].seconds(value))


def _usual(shared: Overlap) -> Overlap:
    """With the usual deviation of every value: a value's effect on a micro-step's arithmetic is not the optimizer's."""
    return shared._replace(open=shared.values)


def _expected(
    points: Features, values: Mapping[str, Sequence[Value]], baseline: Configuration, prior: Prior
) -> Numbers:
    """(n, 3): expected logarithms of the seconds of a micro-step and of the optimizer's step, up to a constant, and bytes
    beyond the estimate."""
    expected = np.zeros((len(points), 3))
    arithmetic, kernels = points.micro.copy(), np.full(len(points), prior.half_speed)
    base = baseline.values
    for column, name in enumerate(name for name in values if name != "micro_batch_size"):
        effects, codes = prior.effects.get(name, {}), points.codes[:, column]
        zero = np.array(effects.get(base[name], Effect()))
        ordered = [base[name], *(value for value in values[name] if value != base[name])]
        expected += np.array([effects[value] - zero if value in effects else np.zeros(3) for value in ordered])[codes]
        if work := prior.work.get(name):
            works = np.array([work.get(value, Work()) for value in ordered])[codes]
            arithmetic, kernels = arithmetic * works[:, 0], kernels * works[:, 1]
            expected[:, 1] += np.log(works[:, 2])
    expected[:, 0] += np.log(kernels + arithmetic)
    return expected


def _optimizer_s(seen: Observation) -> float:
    """The optimizer's part, at least a ten-thousandth of the step: it has a logarithm."""
    return max(seen.optimizer_step_s, (seen.step_s or 1.0) / 1e4)


def _longer_samples(timed: Sequence[Observation]) -> Numbers:
    """Logarithms of each step's tokens over the first's: longer samples do not make a configuration slower."""
    first = timed[0].tokens if timed else 0.0
    return np.array([np.log(seen.tokens / first) if first and seen.tokens else 0.0 for seen in timed])


def _probing(observations: Sequence[Observation]) -> tuple[float, float]:
    """(seconds outside its steps, steps) of a probe."""
    timed = [seen for seen in observations if seen.steps]
    if not timed:
        return PROBE_START_S, PROBE_STEPS
    return median(seen.starting_s for seen in timed), median(seen.steps for seen in timed)
