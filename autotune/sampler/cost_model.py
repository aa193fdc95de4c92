"""Step time and memory of every configuration with their uncertainty, before and after each measurement.

    prior and estimates ──────┐                     ┌─> seconds of a step = accumulation x micro-step + optimizer's step
    Observations of probes ───┴─> CostModel.costs() ┼─> peak bytes, and how likely they fit
                                                    └─> seconds of a probe

A micro-step and the optimizer's step are modelled apart, each by the logarithm of its seconds: a slow optimizer matters
little if it steps seldom, which no product of factors expresses. Memory is the estimate, corrected by an offset and a
slope learned from the probes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median, median_low

import numpy as np
from scipy.special import ndtr

from autotune.core.configuration import Configuration, Value
from autotune.core.step import MICRO_STEPS
from autotune.judge.constants import LEAST_NOISE
from autotune.judge.observation import Observation
from autotune.sampler.clock import Clock
from autotune.sampler.constants import LEAST_PEAK, PROBE_START_S, PROBE_STEPS, WORTH
from autotune.sampler.costs import Covariances, ExpectedCosts, Places, Times
from autotune.sampler.gp import Numbers, Posterior, at_least, condition
from autotune.sampler.kernel import Features, Overlap, encode, overlap_of, self_overlap
from autotune.sampler.parameters import all_values
from autotune.sampler.prior import MIB, Learned, Prior
from autotune.sampler.scales import error_mixture, grid, grid_posterior, representatives
from autotune.sampler.warm_start import WarmStart, with_estimate
from autotune.space.search_space import SearchSpace
from autotune.space.settings import SETTINGS, CostChange, WorkFactors

MIN_INFORMATION = 1e-3
"""Share of an effect's variance below which measurements tell nothing of it. Technical: keeps quotients finite."""

SlowStart = tuple[tuple[str, Value], ...]
"""The values of a configuration that make a training's start slow."""


class CostModel:
    """Costs of a fixed set of configurations, which includes the baseline and all that are measured.

    space: with its baseline, and all values of each setting. knowledge: before any probe; without an estimate all peaks are
    expected to be equal (`with_estimate`).
    """

    def __init__(self, configurations: Sequence[Configuration], space: SearchSpace, knowledge: WarmStart) -> None:
        knowledge = with_estimate(knowledge)
        assert knowledge.estimate is not None
        self.configurations, self.training_steps = list(configurations), knowledge.training_steps
        self.prior, self.allowed_bytes = knowledge.prior, knowledge.allowed_bytes
        self.untouched_bytes, self.baseline = knowledge.untouched_bytes, space.baseline
        prior, baseline, values = self.prior, self.baseline, all_values(space)
        self.place = {configuration: place for place, configuration in enumerate(self.configurations)}
        self._slow_starts = [_slow_start(configuration) for configuration in self.configurations]
        base = baseline.values
        self.points = encode(
            self.configurations,
            values,
            baseline,
            lambda setting, value: prior.prior_std(setting, value, base[setting]),
            lambda setting: SETTINGS[setting].costs.memory and setting != "optimizer",
            knowledge.padded,
        )
        self._values = values
        self._settings = settings = [name for name in values if name != "micro_batch_size"]
        # Configurations that differ only in settings without memory use have one peak.
        self._memory_points = self.points.only([i for i, name in enumerate(settings) if SETTINGS[name].costs.memory])
        self.estimates = (
            np.array([knowledge.estimate(configuration) for configuration in self.configurations], float) / MIB
        )
        self._expected, starting = _expected(self.points, values, baseline, prior)
        self.points = replace(self.points, starting=starting)
        self.promising = self._promising(replace(prior, learned={}))
        self._rows: dict[int, Covariances] = {}

    def _promising(self, prior: Prior) -> list[tuple[int, int]]:
        """(column, code) of each setting's best value, if it is expected to be WORTH faster.

        At a micro-step of the baseline's size, whatever other models showed.
        """
        promising = []
        own = self.points[np.array([self.place[self.baseline]])]
        for column, name in enumerate(self._settings):
            count = len(_ordered(self._values[name], self.baseline.values[name]))
            codes = np.repeat(own.codes, count, 0)
            codes[:, column] = np.arange(count)
            alone = replace(own, codes=codes, micro=np.repeat(own.micro, count), work=np.repeat(own.work, count))
            seconds = _expected(alone, self._values, self.baseline, prior)[0][:, 0]
            best = int(seconds.argmin())
            if seconds[0] - seconds[best] > math.log1p(WORTH):
                promising.append((column, best))
        return promising

    @cached_property
    def _variances(self) -> tuple[Numbers, Numbers, Numbers]:
        prior, points = self.prior, self.points
        shared = self_overlap(points)
        micro_step = replace(prior.micro_step, rest=0.0, computation=0.0)
        times = (micro_step.variance(shared, points), prior.optimizer_step.variance(_usual(shared), points))
        return *times, prior.memory.variance(self._memory_points, self.estimates)

    def costs(self, observations: Sequence[Observation]) -> ExpectedCosts:
        """The costs of every configuration after these observations."""
        times = self._times(observations)
        micro, optimizer = times.mean, times.optimizer
        all_micro = np.log(self.points.accumulation) + micro
        slow_start = self._slow_start_s(observations)
        log_step = np.logaddexp(all_micro, optimizer.mean)
        if self.training_steps:
            log_step = np.log(np.exp(log_step) + slow_start / self.training_steps)
        share, of_optimizer = np.exp(all_micro - log_step), np.exp(optimizer.mean - log_step)
        variance = share**2 * times.variance + of_optimizer**2 * optimizer.variance
        memory = self._memory(observations)
        deviation = np.sqrt(memory.variance + (self.prior.memory.noise_bytes / MIB) ** 2)
        peak = np.maximum(memory.mean, LEAST_PEAK * self.estimates)
        # A feasible peak did fit.
        allowed = max([self.allowed_bytes, *(seen.peak_bytes or 0 for seen in observations if seen.feasible)])
        run = np.minimum(self.points.accumulation, MICRO_STEPS) * np.exp(micro) + np.exp(optimizer.mean)
        starting, steps = _probing(observations)
        return ExpectedCosts(
            log_step,
            np.sqrt(variance),
            micro,
            optimizer.mean,
            of_optimizer,
            share,
            peak * MIB,
            deviation * MIB,
            ndtr((allowed / MIB - peak) / deviation),
            allowed,
            starting + slow_start + steps * run,
            sum(weight * scales.noise for scales, weight, _ in times.micro),
            self.prior.memory.noise_bytes,
            self.prior_covariances,
            times,
            memory,
        )

    def _slow_start_s(self, observations: Sequence[Observation]) -> Numbers:
        """(n,): seconds of a probe and of a run before their first settled step, as the settings expect until measured."""
        measured: dict[SlowStart, list[float]] = {}
        for seen in observations:
            if seen.compile_s:
                measured.setdefault(_slow_start(seen.configuration), []).append(seen.compile_s)
        seconds = {
            key: sum(SETTINGS[name].costs.seconds(value) for name, value in key) for key in set(self._slow_starts)
        }
        seconds |= {key: max(times) for key, times in measured.items() if key}  # others found some of it compiled
        return np.array([seconds[key] for key in self._slow_starts])

    def prior_covariances(self, here: Places, there: Places | None = None) -> Covariances:
        """Covariances of the places `here` with `there`, by default with all."""
        prior, there = self.prior, np.arange(len(self.points)) if there is None else there
        points = self.points[here], self.points[there]
        of_memory = self._memory_points[here], self._memory_points[there]
        shared = overlap_of(*points)
        return Covariances(
            replace(prior.micro_step, rest=0.0, computation=0.0).covariance(shared, *points),
            prior.optimizer_step.covariance(_usual(shared), *points),
            prior.memory.covariance(overlap_of(*of_memory), *of_memory, self.estimates[here], self.estimates[there]),
            shared.computation.astype(float),
            shared.same.astype(float),
        )

    def learned(self, observations: Sequence[Observation]) -> dict[str, dict[Value, Learned]]:
        """Setting -> value -> its effect by these observations alone, without values that they do not measure.

        Of a normal effect with prior variance v and posterior mean m and variance w they tell as much as one measurement of
        m v / (v - w) with variance v w / (v - w) would: little of effects that were only seen together.
        """
        times, memory = self._times(observations), self._memory(observations)
        prior, base, codes = self.prior, self.baseline.values, self.points.codes
        # Of a value's effect on a peak: bytes, and a share of the estimate.
        here, there = self.estimates[self.place[self.baseline]], self.estimates[memory.places]
        in_mib, share = (prior.memory.value_bytes / MIB) ** 2, prior.memory.value**2 * here
        learned: dict[str, dict[Value, Learned]] = {}
        for column, name in enumerate(self._settings):
            for code, setting_value in enumerate(_ordered(self._values[name], base[name])):
                usual = (prior.prior_std(name, setting_value, base[name]) * prior.micro_step.value) ** 2
                micro = [(w, *part.of(usual * (codes[part.places, column] == code))) for _, w, part in times.micro]
                if not code or max(lost for _, _, lost in micro) < MIN_INFORMATION * usual:
                    continue
                by_scales = [(weight, *_equivalent_measurement(mean, lost, usual)) for weight, mean, lost in micro]
                mean = sum(weight * value for weight, value, _ in by_scales)
                std = math.sqrt(sum(weight * (std**2 + (value - mean) ** 2) for weight, value, std in by_scales))
                at = codes[times.optimizer.places, column] == code
                of_optimizer = times.optimizer.of(prior.optimizer_step.value**2 * at)
                at = (codes[memory.places, column] == code) & SETTINGS[name].costs.memory
                of_peak = memory.of((in_mib + share * there) * at)
                told = (
                    (mean, std),
                    _equivalent_measurement(*of_optimizer, prior.optimizer_step.value**2),
                    MIB * np.array(_equivalent_measurement(*of_peak, in_mib + share * here)),
                )
                learned.setdefault(name, {})[setting_value] = Learned(
                    *(CostChange(*map(float, part)) for part in zip(*told, strict=True))
                )
        return learned

    def evidence(self, observations: Sequence[Observation], part: str) -> float:
        """Logarithm of the density of the observations of a part by the prior's scales: micro_step, optimizer_step or memory."""
        if part == "memory":
            return self._memory(observations).evidence
        times = self._times(observations)
        return times.optimizer.evidence if part == "optimizer_step" else times.micro[0][2].evidence

    def _times(self, observations: Sequence[Observation]) -> Times:
        """Logarithms of the seconds of a micro-step, and of the optimizer's step."""
        prior, timed = self.prior, [seen for seen in observations if seen.micro_step_s is not None]
        places = np.array([self.place[seen.configuration] for seen in timed], np.intp)
        within = max(median_low(seen.noise for seen in timed), LEAST_NOISE) if timed else LEAST_NOISE
        own = prior.own * np.array([seen.noise for seen in timed])
        micro_steps = np.log([seen.micro_step_s or 1.0 for seen in timed]) - _longer_samples(timed)
        optimizer_steps = np.log([_optimizer_s(seen) for seen in timed])
        rows = self._across(places)
        residuals = micro_steps - self._expected[places, 0]
        clock = Clock.of(timed)
        scales = grid(prior, within, clock.is_known)
        among = [part[:, places] for part in (rows.micro, rows.alike, rows.same)]
        weights = grid_posterior(scales, among[0], among[1], among[2], residuals, own, clock)
        micro_variance, optimizer_variance, _ = self._variances
        micro = []
        for chosen, weight in representatives(scales, weights):
            across = rows.micro_with(chosen)
            variance = micro_variance + chosen.computation**2 + chosen.rest**2
            noise = np.hypot(chosen.noise, own)
            part = condition(
                self._expected[:, 0], variance, across, places, residuals, noise, clock.covariance(chosen.drift)
            )
            micro.append((chosen, weight, part))
        noise_of_optimizer = prior.optimizer_noise * sum(weight * chosen.noise for chosen, weight, _ in micro)
        noise = np.hypot(noise_of_optimizer, prior.optimizer_noise * own)
        residuals = optimizer_steps - self._expected[places, 1]
        across, drift = rows.optimizer, math.sqrt(sum(weight * chosen.drift**2 for chosen, weight, _ in micro))
        optimizer = condition(
            self._expected[:, 1], optimizer_variance, across, places, residuals, noise, clock.covariance(drift)
        )
        return Times(micro, optimizer, clock, drift, noise_of_optimizer, error_mixture(scales, weights))

    def _memory(self, observations: Sequence[Observation]) -> Posterior:
        """Peaks, in MiB."""
        prior, noise = self.prior.memory, self.prior.memory.noise_bytes / MIB
        mean = (prior.mean_offset_bytes + self._expected[:, 2]) / MIB + self.estimates

        def given(peaks: list[tuple[int, float, float]]) -> Posterior:
            places, sizes, noises = zip(*peaks, strict=True) if peaks else ((), (), ())
            at, variance = np.array(places, np.intp), self._variances[2]
            across = self._across(at).memory
            return condition(mean, variance, across, at, np.array(sizes) - mean[at], np.array(noises))

        peaks = [(self.place[o.configuration], o.peak_bytes / MIB, noise) for o in observations if o.peak_bytes]
        posterior = given(peaks)
        for seen in observations:
            if seen.wanted_bytes:  # out of memory: at least this much
                place, wanted = self.place[seen.configuration], seen.wanted_bytes - self.untouched_bytes
                variance = float(posterior.variance[place]) + noise**2
                if equivalent := at_least(wanted / MIB, float(posterior.mean[place]), variance):
                    peaks.append((place, equivalent[0], math.hypot(equivalent[1], noise)))
                    posterior = given(peaks)
        return posterior

    def _across(self, places: Places) -> Covariances:
        """(m, n) each: of these places with all."""
        if fresh := [place for place in dict.fromkeys(places.tolist()) if place not in self._rows]:
            parts = zip(*self.prior_covariances(np.array(fresh, np.intp)), strict=True)
            self._rows.update(zip(fresh, (Covariances(*row) for row in parts), strict=True))
        rows = [self._rows[place] for place in places.tolist()]
        shape = len(places), len(self.points)
        return Covariances(
            *(np.array([row[part] for row in rows]).reshape(shape) for part in range(len(Covariances._fields)))
        )


def _equivalent_measurement(mean: float, lost: float, variance: float) -> tuple[float, float]:
    """(value, standard deviation) of the one measurement that tells as much. lost: of the prior's variance."""
    lost = min(max(lost, MIN_INFORMATION * variance), (1 - MIN_INFORMATION) * variance)
    return mean * variance / lost, math.sqrt(variance * (variance - lost) / lost)


def _slow_start(configuration: Configuration) -> SlowStart:
    return tuple((name, value) for name, value in configuration.settings if SETTINGS[name].costs.seconds(value))


def _usual(shared: Overlap) -> Overlap:
    """Overlap with the usual deviation of every value: a value's effect on a micro-step's arithmetic is not the optimizer's."""
    return shared._replace(open=shared.values)


def _expected(
    points: Features, values: Mapping[str, Sequence[Value]], baseline: Configuration, prior: Prior
) -> tuple[Numbers, Numbers]:
    """Expected costs before any measurement, and what they rest on.

    (n, 3) logarithms of the micro-step's and the optimizer step's seconds, up to a constant, and bytes beyond the estimate; (n,)
    share of the micro-step in which kernels are started.
    """
    expected = np.zeros((len(points), 3))
    arithmetic, kernels = points.work.copy(), np.full(len(points), prior.half_speed)
    base = baseline.values
    for column, name in enumerate(name for name in values if name != "micro_batch_size"):
        effects, codes = prior.effects.get(name, {}), points.codes[:, column]
        zero = np.array(effects.get(base[name], CostChange()))
        ordered = _ordered(values[name], base[name])
        expected += np.array([effects[value] - zero if value in effects else np.zeros(3) for value in ordered])[codes]
        if learned := prior.learned.get(name):
            deviations = [learned[value].deviation if value in learned else CostChange() for value in ordered]
            expected += np.array(deviations)[codes]
        if work := prior.work.get(name):
            works = np.array([work.get(value, WorkFactors()) for value in ordered])[codes]
            exponent = prior.believed if name == "precision" else 1.0
            arithmetic, kernels = arithmetic * works[:, 0] ** exponent, kernels * works[:, 1]
            expected[:, 1] += np.log(works[:, 2])
    expected[:, 0] += np.log(kernels + arithmetic)
    return expected, kernels / (kernels + arithmetic)


def _ordered(values: Sequence[Value], base: Value) -> list[Value]:
    """Values by their code, the baseline's first."""
    return [base, *(value for value in values if value != base)]


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
