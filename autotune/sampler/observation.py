"""Observation: what a probe taught about costs, as the few numbers that a model of them learns from."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from autotune.core.configuration import Configuration
from autotune.core.measurement import HOST_STAGES, Measurement, Outcome

WITHOUT_INTERVAL = 0.5
"""Noise of a speed whose interval is unknown, such as that of a single step, as a standard deviation of its logarithm."""


@dataclass(frozen=True)
class Observation:
    """What a probe taught about one configuration.

    outcome: as the measurement's. step_s: seconds of a whole optimizer step; None where none was timed.
    optimizer_step_s: the part of it that clipping and the optimizer take. tokens: those of a step without
    padding, 0 where unknown.
    noise: standard deviation of the logarithm of step_s. peak_bytes: None where unknown.
    wanted_bytes: of an out-of-memory on the device, or an allocator that had to try again: the least that is needed.
    steps: that the probe ran; compile_s: its seconds of compiling; starting_s: those outside of both.
    """

    configuration: Configuration
    outcome: Outcome
    step_s: float | None = None
    optimizer_step_s: float = 0.0
    tokens: float = 0.0
    noise: float = WITHOUT_INTERVAL
    peak_bytes: int | None = None
    wanted_bytes: int | None = None
    starting_s: float = 0.0
    compile_s: float = 0.0
    steps: int = 0
    ended_early: bool = False
    feasible: bool = False

    @property
    def micro_step_s(self) -> float | None:
        """Seconds of a step for each of its micro-batches, fetching included, the optimizer not."""
        if self.step_s is None:
            return None
        # A thousandth at the least: noise may have made the optimizer's part the whole.
        return max(self.step_s - self.optimizer_step_s, self.step_s / 1000) / (
            self.configuration.gradient_accumulation_steps
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"configuration": self.configuration.to_dict(), "outcome": self.outcome.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Observation":
        configuration = Configuration.from_dict(data["configuration"])
        return cls(**{**data, "configuration": configuration, "outcome": Outcome(data["outcome"])})


def observed(configuration: Configuration, measurement: Measurement) -> Observation:
    """What this measurement of this configuration taught."""
    to_attrs = Observation(
        configuration,
        measurement.outcome,
        starting_s=measurement.probe_seconds,
        ended_early=measurement.ended_early,
        feasible=measurement.feasible,
    )
    if measurement.outcome is Outcome.OUT_OF_MEMORY:
        wanted = (measurement.held_bytes or 0) + (measurement.refused_bytes or 0)
        elsewhere = measurement.where in HOST_STAGES or measurement.observed_warnings
        return to_attrs if elsewhere else replace(to_attrs, wanted_bytes=wanted or measurement.allowed_bytes)
    speed = measurement.samples_per_second
    if measurement.outcome is not Outcome.COMPLETED or speed is None:
        return to_attrs
    half = min(speed.high - speed.value, speed.value - speed.low) / speed.value
    composed, steps = measurement.composed_steps, measurement.steps
    run = len(steps) + measurement.untimed_steps
    stepping = run * sum(step.seconds for step in steps) / len(steps)
    return replace(
        to_attrs,
        step_s=measurement.step_time_s,
        optimizer_step_s=measurement.optimizer_step_time_s or 0.0,
        tokens=measurement.data_parallel_size * sum(step.non_padding_tokens for step in composed) / len(composed),
        noise=half / 1.96 if len(composed) > 1 else WITHOUT_INTERVAL,
        peak_bytes=None if measurement.allocator_retries else measurement.peak_bytes,
        wanted_bytes=measurement.allowed_bytes if measurement.allocator_retries else None,
        starting_s=max(0.0, measurement.probe_seconds - stepping - measurement.compile_s),
        compile_s=measurement.compile_s,
        steps=run,
    )
