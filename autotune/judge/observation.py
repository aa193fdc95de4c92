"""Costs of a configuration as a probe shows them: the few numbers from which the cost model learns."""

import math
from dataclasses import dataclass, replace

from autotune.core import Configuration, Measurement, Outcome, Serializable
from autotune.core.interval import student_t
from autotune.core.measurement import HOST_STAGES, JOIN
from autotune.judge.constants import WITHOUT_INTERVAL


@dataclass(frozen=True)
class Observation(Serializable):
    """Costs of one configuration as a probe shows them."""

    configuration: Configuration
    outcome: Outcome
    step_s: float | None = None  # of a whole optimizer step; None if none was timed
    optimizer_step_s: float = 0.0  # the part of step_s in clipping and the optimizer
    tokens: float = 0.0  # of a step, without padding; 0 if unknown
    noise: float = WITHOUT_INTERVAL  # standard deviation of the logarithm of step_s
    peak_bytes: int | None = None
    wanted_bytes: int | None = None  # at least needed, after an out-of-memory on the device or an allocator's retry
    starting_s: float = 0.0  # of the probe, outside its steps and compiling
    compile_s: float = 0.0
    steps: int = 0  # that the probe ran
    ended_early: bool = False
    feasible: bool = False
    settled: float = 1.0  # share of the speed that remains over a run of announced length, which begins by compiling
    seconds: float = 0.0  # of the whole measurement
    round: int = 0  # number of its confirmation round; 0: its probe
    device: str = ""  # of several devices the one that measured it
    started_s: float | None = None  # seconds on a clock that all measurements share; None: nothing is known of its time

    @property
    def devices(self) -> frozenset[str]:
        """Names of the devices that measured it."""
        return frozenset(self.device.split(JOIN))

    @property
    def log_step(self) -> float:
        """Logarithm of a step's seconds in the whole run; raises ValueError if none was timed."""
        return math.log(self.step_s or 0.0) - math.log(self.settled)

    @property
    def micro_step_s(self) -> float | None:
        """Seconds of a step for each of its micro-batches, fetching included, the optimizer not."""
        if self.step_s is None:
            return None
        # At least a thousandth: by noise the optimizer's part may be the whole.
        return max(self.step_s - self.optimizer_step_s, self.step_s / 1000) / (
            self.configuration.gradient_accumulation_steps
        )


def observed(configuration: Configuration, measurement: Measurement) -> Observation:
    """The observation of this measurement of this configuration."""
    observation = Observation(
        configuration,
        measurement.outcome,
        starting_s=measurement.probe_seconds,
        ended_early=measurement.ended_early,
        feasible=measurement.feasible,
        settled=measurement.after_compiling,
        seconds=measurement.probe_seconds,
        round=measurement.round,
        device=measurement.device,
        started_s=measurement.started_s,
    )
    if measurement.outcome is Outcome.OUT_OF_MEMORY:
        wanted = (measurement.held_bytes or 0) + (measurement.refused_bytes or 0)
        on_host = measurement.where in HOST_STAGES or measurement.observed_warnings
        wanted = max(wanted, measurement.allowed_bytes or 0)  # fragments may have kept it from what was left
        return observation if on_host else replace(observation, wanted_bytes=wanted or None)
    speed = measurement.samples_per_second
    if measurement.outcome is not Outcome.COMPLETED or speed is None:
        return observation
    composed, steps = measurement.composed_steps, measurement.steps
    run = len(steps) + measurement.untimed_steps
    stepping = run * sum(step.seconds for step in steps) / len(steps)
    return replace(
        observation,
        step_s=measurement.step_time_s,
        optimizer_step_s=measurement.optimizer_step_time_s or 0.0,
        tokens=measurement.data_parallel_size * sum(step.non_padding_tokens for step in composed) / len(composed),
        noise=standard_error(measurement) or WITHOUT_INTERVAL,
        peak_bytes=None if measurement.allocator_retries else measurement.peak_bytes,
        wanted_bytes=measurement.allowed_bytes if measurement.allocator_retries else None,
        starting_s=max(0.0, measurement.probe_seconds - stepping - measurement.compile_s),
        compile_s=measurement.compile_s,
        steps=run,
    )


def standard_error(measurement: Measurement) -> float | None:
    """Standard deviation of the logarithm of a measurement's speed by the steps within it; None of a single step."""
    speed, count = measurement.samples_per_second, len(measurement.composed_steps)
    if speed is None or count < 2:
        return None
    half = min(speed.high - speed.value, speed.value - speed.low) / speed.value
    return half / student_t(count - 1)
