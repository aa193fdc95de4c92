"""Reasons for a speed: what bounds a training, and the parts of its step."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core import Configuration, Measurement, Outcome, Trial, Value
from autotune.core.reason import Kind, Reason
from autotune.judge.dominance import implied_by
from autotune.space.settings import MICRO, SETTINGS
from autotune.space.settings.micro_batch_size import divisors

# Bounds -----------------------------------------------------------------------------------------------------------


class BoundKind(Kind):
    """Kinds of bottlenecks of a training."""

    INPUT = "input"
    MEMORY = "memory"
    COMPUTE = "compute"
    OPTIMIZER = "optimizer"
    OVERHEAD = "overhead"


@dataclass(frozen=True)
class Bound(Reason):
    """Bottleneck of a training: shares of its step by part, and `peak`, its share of the memory allowed.

    detail: a change that needs more memory and ran out of it, in the trial of that number: `micro_batch_size 16`.
    """

    kind: BoundKind

    @property
    def text(self) -> str:
        """`compute-bound: 90% of a step is forward and backward, ...`."""
        shares = {name: f"{share:.0%}" for name, share in self.numbers.items()}
        if self.kind is BoundKind.INPUT:
            return f"input-bound: {shares['data_wait']} of a step is waiting for data"
        busy = (
            f"{shares['micro_steps']} of a step is forward and backward, {shares['optimizer']} clipping and optimizer, "
            f"{shares['data_wait']} waiting for data"
        )
        free = f"its peak is {shares['peak']} of the memory allowed" if "peak" in shares else ""
        if self.kind is BoundKind.MEMORY:
            trial = f"{self.detail} (trial {self.numbers['trial']:.0f})"
            return f"memory-bound: {trial} did not fit{f' ({free})' if free else ''}; {busy}"
        return f"{self.kind}-bound: {busy}{f'; {free}' if free else ''}"


def bound(trial: Trial, trials: Sequence[Trial]) -> Bound | None:
    """Bottleneck of this trial; None if no step was timed.

    Input-bound as `Measurement.input_bound` says; memory-bound if a value that needs more memory ran out of it in
    the trials; else by the part of the step that takes most.
    """
    final = trial.final
    if not final.feasible:
        return None
    numbers = {part: seconds / (final.step_time_s or 1.0) for part, seconds in parts(final).items()}
    if final.allowed_bytes:
        numbers["peak"] = 1 + final.fits
    if final.input_bound:
        return Bound(BoundKind.INPUT, numbers)
    if larger := _did_not_fit(trial, trials):
        change, number = larger
        return Bound(BoundKind.MEMORY, numbers | {"trial": number}, change)
    kinds = {"micro_steps": BoundKind.COMPUTE, "optimizer": BoundKind.OPTIMIZER, "trainer": BoundKind.OVERHEAD}
    return Bound(kinds[max(kinds, key=lambda part: numbers[part])], numbers)


def _did_not_fit(trial: Trial, trials: Sequence[Trial]) -> tuple[str, int] | None:
    """A single change of this trial that needs more memory, `micro_batch_size 16`, and the trial that ran out of it."""
    values = trial.configuration.values
    failed = [
        each for each in trials if each.final.outcome is Outcome.OUT_OF_MEMORY and not each.final.observed_warnings
    ]
    for name, own in values.items():
        setting = SETTINGS[name]
        tried = dict.fromkeys(each.configuration.values[name] for each in trials if name in each.configuration.values)
        for value in divisors(trial.configuration.global_batch_size) if name == MICRO else tried:
            if value == own or not setting.costs.memory or not setting.costs.needs_at_least_as_much(value, own):
                continue
            if (implying := implied_by(with_value(trial.configuration, name, value), failed)) is not None:
                return f"{name} {value}", implying.number
    return None


def with_value(configuration: Configuration, name: str, value: Value) -> Configuration:
    """The configuration with another value of one setting; accumulation follows the micro-batch size."""
    values = {**configuration.values, name: value}
    micro = int(values.pop(MICRO))
    return Configuration.exact(configuration.global_batch_size, micro, values, configuration.data_parallel_size)


# Parts of step and memory -----------------------------------------------------------------------------------------


def parts(measurement: Measurement) -> dict[str, float]:
    """Seconds of a step by part; their sum is the step's time."""
    step = measurement.step_time_s or 0.0
    micro = (measurement.micro_step_time_s or 0.0) * measurement.accumulation_steps
    optimizer, wait = measurement.optimizer_step_time_s or 0.0, measurement.data_wait_s or 0.0
    timed = {"micro_steps": micro, "optimizer": optimizer, "data_wait": wait}
    return timed | {"trainer": max(0.0, step - sum(timed.values()))}


STEP = {
    "step_time_s": "step",
    "data_wait_s": "waiting for data",
    "forward_time_s": "all forward passes",
    "backward_time_s": "all backward passes",
    "optimizer_step_time_s": "clipping, optimizer",
    "overhead_time_s": "Trainer's own work",
}
"""Property of a measurement -> its label."""


def step_split(measurement: Measurement) -> dict[str, float | None]:
    """Mean seconds of a step and of its parts; None if they were not timed."""
    return {name: getattr(measurement, name) for name in STEP}
