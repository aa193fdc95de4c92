"""Step time and memory of every configuration, before and after each measurement, with how far they may be off.

    what is known beforehand ─┐                     ┌─> seconds of a step = accumulation x micro-step + optimizer's step
    Observations of probes ───┴─> CostModel.costs() ┼─> peak bytes, and how likely they fit
                                                    └─> seconds of a probe

A micro-step and the optimizer's step are modelled apart, each by the logarithm of its seconds: an optimizer that is slow
matters little where it steps seldom, and no product of factors says that. Memory is the estimate, corrected by an offset
and a slope that the probes tell.
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
"""Seconds of a probe outside its steps, and its steps, before any probe was seen."""

PROBE_MICRO_STEPS = 3
"""Micro-steps that a probe runs of each step: the rest is composed."""

LEAST_PEAK = 0.25
"""Share of its estimate below which no peak is believed to lie, whatever a straight line says far from what was measured."""

Places = NDArray[np.intp]

SlowStart = tuple[tuple[str, Value], ...]
"""The values of a configuration that make a training's start slow."""


@dataclass(frozen=True)
class Costs:
    """What n configurations cost, as far as it is known.

    log_step: (n,) expected logarithm of a step's seconds; deviation: (n,) its standard deviation.
    log_micro_step, log_optimizer_step: (n,) the same of its parts. optimizer_share, micro_share: (n,) the optimizer's part of
    it and the micro-steps'; what is left is a slow start's, spread over the run.
    peak, peak_deviation: (n,) bytes, of the next process. fits: (n,) probabilities of staying below allowed_bytes.
    probe_seconds: (n,).
    """

    log_step: Numbers
    deviation: Numbers
    log_micro_step: Numbers
    log_optimizer_step: Numbers
    optimizer_share: Numbers
    micro_share: Numbers
    peak: Numbers
    peak_deviation: Numbers
    fits: Numbers
    allowed_bytes: int
    probe_seconds: Numbers
    _model: "CostModel"
    _parts: tuple[Posterior, Posterior, Posterior]

    def covariances(self, chosen: Places) -> tuple[Numbers, Numbers]:
        """(k, k) each, of some configurations given by their places: of the logarithms of their step times, and of their
        peaks in mebibytes, the same process's noise left out."""
        within = self._model.prior_covariances(chosen, chosen)
        micro, optimizer, memory = (
            before - part.reach[:, chosen].T @ part.reach[:, chosen]
            for before, part in zip(within, self._parts, strict=True)
        )
        updates, steps = self.optimizer_share[chosen], self.micro_share[chosen]
        return np.outer(steps, steps) * micro + np.outer(updates, updates) * optimizer, memory

    def drawn(self, chosen: Places, draws: int, seed: int) -> tuple[Numbers, Numbers]:
        """(draws, k) each: what the logarithms of their step times and the peak bytes of their next processes might be."""
        rng = np.random.default_rng(seed)
        of_steps, of_peaks = self.covariances(chosen)
        noise = np.diag(np.full(len(chosen), (self._model.prior.memory.noise_bytes / MIB) ** 2))
        log_steps = draw(self.log_step[chosen], of_steps, draws, rng)
        return log_steps, MIB * draw(self.peak[chosen] / MIB, of_peaks + noise, draws, rng)


class CostModel:
    """Costs of a fixed set of configurations, the baseline and all that are measured among them.

    values: the settings of the space and all their values. estimate: a configuration's peak bytes before any probe.
    allowed_bytes: what a training may use. untouched_bytes: what counts against the limit and is no part of a peak.
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
        self.untouched_bytes = untouched_bytes
        self._slow_starts = [_slow_start(one) for one in self.configurations]
        self.place = {one: at for at, one in enumerate(self.configurations)}
        self.prior, self.allowed_bytes, self.baseline = prior, allowed_bytes, baseline
        own = baseline.values
        self.points = encode(
            self.configurations, values, baseline, lambda setting, value: prior.prior_std(setting, value, own[setting])
        )
        settings = [name for name in values if name != "micro_batch_size"]
        # What differs in nothing that takes memory has one peak.
        self._hungry = self.points.only([at for at, name in enumerate(settings) if "memory" in SETTINGS[name].changes])
        self.estimates = np.array([estimate(one) for one in self.configurations], float) / MIB
        self._expected = _expected(self.points, values, baseline, prior)
        self._rows: dict[int, tuple[Numbers, Numbers, Numbers]] = {}

    @cached_property
    def _variances(self) -> tuple[Numbers, Numbers, Numbers]:
        prior, points = self.prior, self.points
        shared = self_overlap(points)
        times = (prior.micro_step.variance(shared, points), prior.optimizer_step.variance(_usual(shared), points))
        return *times, prior.memory.variance(self._hungry, self.estimates)

    def costs(self, observations: Sequence[Observation]) -> Costs:
        """What every configuration costs, by what is known beforehand and by these observations."""
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
        # What ran to its end did fit.
        allowed = max(self.allowed_bytes, *(one.peak_bytes or 0 for one in observations if one.feasible), 0)
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
        """(n,): seconds of a probe and of a run before their first settled step, as the settings expect them until measured."""
        seen: dict[SlowStart, list[float]] = {}
        for one in observations:
            if one.compile_s:
                seen.setdefault(_slow_start(one.configuration), []).append(one.compile_s)
        expected = {key: sum(SETTINGS[name].seconds(value) for name, value in key) for key in set(self._slow_starts)}
        known = expected | {key: median(seconds) for key, seconds in seen.items() if key}
        return np.array([known[key] for key in self._slow_starts])

    def prior_covariances(self, here: Places, there: Places | None = None) -> tuple[Numbers, Numbers, Numbers]:
        """(n, m) each, before any measurement: of the logarithms of the seconds of a micro-step and of the optimizer's
        step, and of peaks in mebibytes; places there: all by default."""
        prior, there = self.prior, np.arange(len(self.points)) if there is None else there
        one, other, hungry, others = self.points[here], self.points[there], self._hungry[here], self._hungry[there]
        shared = overlap_of(one, other)
        return (
            prior.micro_step.covariance(shared, one, other),
            prior.optimizer_step.covariance(_usual(shared), one, other),
            prior.memory.covariance(
                overlap_of(hungry, others), hungry, others, self.estimates[here], self.estimates[there]
            ),
        )

    def evidence(self, observations: Sequence[Observation], part: str) -> float:
        """Logarithm of the density of what was observed of a part: micro_step, optimizer_step or memory."""
        if part == "memory":
            return self._memory(observations).evidence
        return self._times(observations)[part == "optimizer_step"].evidence

    def _times(self, observations: Sequence[Observation]) -> tuple[Posterior, Posterior]:
        """Logarithms of the seconds of a micro-step, and of the optimizer's step."""
        timed = [one for one in observations if one.micro_step_s is not None]
        at = [self.place[one.configuration] for one in timed]
        noise = np.array([max(self.prior.noise * one.noise, self.prior.least_noise) for one in timed])
        micro_steps = np.log([one.micro_step_s or 1.0 for one in timed]) - _longer_samples(timed)
        optimizer_steps = np.log([_optimizer_s(one) for one in timed])
        return (
            self._conditioned(0, self._expected[:, 0], at, micro_steps, noise),
            self._conditioned(1, self._expected[:, 1], at, optimizer_steps, noise),
        )

    def _memory(self, observations: Sequence[Observation]) -> Posterior:
        """Peaks, in mebibytes."""
        prior, noise = self.prior.memory, self.prior.memory.noise_bytes / MIB
        mean = (prior.mean_offset_bytes + self._expected[:, 2]) / MIB + self.estimates

        def given(seen: list[tuple[int, float, float]]) -> Posterior:
            at, peaks, noises = zip(*seen, strict=True) if seen else ((), (), ())
            return self._conditioned(2, mean, list(at), np.array(peaks), np.array(noises))

        seen = [(self.place[o.configuration], o.peak_bytes / MIB, noise) for o in observations if o.peak_bytes]
        posterior = given(seen)
        for one in observations:
            if one.wanted_bytes:  # out of memory: at least so much
                at, wanted = self.place[one.configuration], one.wanted_bytes - self.untouched_bytes
                variance = float(posterior.variance[at]) + noise**2
                found = at_least(wanted / MIB, float(posterior.mean[at]), variance)
                if found is not None:
                    seen.append((at, found[0], math.hypot(found[1], noise)))
                    posterior = given(seen)
        return posterior

    def _conditioned(self, part: int, mean: Numbers, at: list[int], measured: Numbers, noise: Numbers) -> Posterior:
        """All points, given what was measured at some places."""
        fresh = [place for place in dict.fromkeys(at) if place not in self._rows]
        if fresh:
            rows = zip(*self.prior_covariances(np.array(fresh, np.intp)), strict=True)
            self._rows.update(zip(fresh, rows, strict=True))
        across = np.array([self._rows[place][part] for place in at]).reshape(len(at), len(mean))
        return condition(mean, self._variances[part], across, across[:, at], measured - mean[at], noise)


def _slow_start(configuration: Configuration) -> SlowStart:
    return tuple((name, value) for name, value in configuration.settings if SETTINGS[name].seconds(value))


def _usual(shared: Overlap) -> Overlap:
    """With the usual warning of every value: what a value makes of a micro-step's arithmetic is none of the optimizer's."""
    return shared._replace(open=shared.values)


def _expected(
    points: Features, values: Mapping[str, Sequence[Value]], baseline: Configuration, prior: Prior
) -> Numbers:
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
            found[:, 1] += np.log(works[:, 2])
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
