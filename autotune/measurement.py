"""Measurement: the raw facts that one probe brought back, and what follows from them.

One optimizer step, from the end of the one before it to its own end:

    | data wait | first micro-step | middle ... middle | last micro-step, clipping, optimizer |
                  writes gradients   adds to them        synchronises ranks
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean
from typing import Any


class Outcome(StrEnum):
    """How a probe ended."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    NON_FINITE_LOSS = "non_finite_loss"
    UNSUPPORTED = "unsupported"
    MISCONFIGURED = "misconfigured"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Step:
    """One timed optimizer step as it was run; all times in seconds.

    seconds: from the end of the step before to the end of this one.
    data_wait_s: spent fetching its micro-batches.
    first_s, middle_s, last_s: its first micro-step, the mean of those between, and its last with clipping and
        optimizer. Where only one micro-step was run, it is the last and the other two are 0.
    optimizer_s: the part of last_s after the last backward.
    samples, tokens: processed by this rank in the step as it was run (tokens: padding included; 0 where a sample has none).
    """

    seconds: float
    data_wait_s: float
    first_s: float
    middle_s: float
    last_s: float
    optimizer_s: float
    samples: int
    tokens: int

    def composed(self, run: int, asked: int) -> "Step":
        """This step with `asked` accumulation steps instead of the `run` it had (decision: first + (k - 2) middle + last).

        Fetching is counted batch by batch; what the Trainer does once a step stays once.
        """
        if run == asked:
            return self
        more = asked - run
        wait = self.data_wait_s * asked / run
        return replace(
            self,
            seconds=self.seconds + more * self.middle_s + (wait - self.data_wait_s),
            data_wait_s=wait,
            samples=self.samples * asked // run,
            tokens=self.tokens * asked // run,
        )


class Interval(float):
    """A number that carries its two-sided 95 % interval, `low` and `high`, in the same unit."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> "Interval":
        self = super().__new__(cls, value)
        self.low, self.high = low, high
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return (float(self), self.low, self.high)

    @property
    def value(self) -> float:
        """The number alone."""
        return float(self)

    @property
    def relative_width(self) -> float:
        """Full width of the interval as a share of the value."""
        return (self.high - self.low) / self if self else math.inf


@dataclass(frozen=True)
class Measurement:
    """The raw facts of one probe. A completed one without a timed step cannot be built.

    accumulation_steps, accumulation_steps_run: asked for, and run in the probe (fewer: speed is composed).
    allowed_bytes: what the probe was held to; peak_*_bytes: highest use, by the meaning of the device (None: unknown).
    peak_file_bytes: the part of a CPU's peak that is pages of library files: resident, but outside the limit.
    held_bytes, refused_bytes: for an out-of-memory, what was in use and the request that was refused.
    settings: read back from the running Trainer; asked: what the configuration asked for.
    """

    outcome: Outcome
    reason: str = ""
    where: str = ""
    accumulation_steps: int = 1
    accumulation_steps_run: int = 1
    data_parallel_size: int = 1
    steps: tuple[Step, ...] = ()
    untimed_steps: int = 0
    ended_early: bool = False
    allowed_bytes: int | None = None
    context_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_device_bytes: int | None = None
    peak_file_bytes: int = 0
    held_bytes: int | None = None
    refused_bytes: int | None = None
    micro_batch_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    seconds_to_first_line: float | None = None
    probe_seconds: float = 0.0
    observed_doubts: tuple[str, ...] = ()
    log_tail: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.outcome is Outcome.COMPLETED and not self.steps:
            raise ValueError("a completed measurement carries at least one timed step")

    @property
    def composed_steps(self) -> list[Step]:
        """The timed steps with the accumulation that was asked for."""
        return [step.composed(self.accumulation_steps_run, self.accumulation_steps) for step in self.steps]

    @property
    def samples_per_second(self) -> Interval | None:
        """Samples of the global batch / second over all timed steps, with its interval; None unless completed."""
        return self._rate("samples")

    @property
    def tokens_per_second(self) -> Interval | None:
        """Tokens / second, padding included; None unless completed or where samples have no tokens."""
        return self._rate("tokens") if any(step.tokens for step in self.steps) else None

    def _rate(self, counted: str) -> Interval | None:
        steps = self.composed_steps
        if self.outcome is not Outcome.COMPLETED:
            return None
        counts = [getattr(step, counted) * self.data_parallel_size for step in steps]
        return ratio_interval(counts, [step.seconds for step in steps])

    @property
    def step_time_s(self) -> float | None:
        """Mean seconds of an optimizer step with the accumulation that was asked for."""
        return fmean(step.seconds for step in self.composed_steps) if self.steps else None

    @property
    def micro_step_time_s(self) -> float | None:
        """Mean seconds of a forward and backward (without fetching, clipping and the optimizer)."""
        if not self.steps:
            return None
        run = self.accumulation_steps_run
        busy = (s.first_s + s.middle_s * max(0, run - 2) + s.last_s - s.optimizer_s for s in self.steps)
        return fmean(busy) / run

    @property
    def optimizer_step_time_s(self) -> float | None:
        """Mean seconds of clipping and the optimizer's step."""
        return fmean(step.optimizer_s for step in self.steps) if self.steps else None

    @property
    def data_wait_s(self) -> float | None:
        """Mean seconds a step waits for its micro-batches, with the accumulation that was asked for."""
        return fmean(step.data_wait_s for step in self.composed_steps) if self.steps else None

    @property
    def peak_bytes(self) -> int | None:
        """The peak that the limit speaks of: the device's own figure where it is known, else reserved and context.

        On a CPU without the library files' pages: they are resident, but no training's memory and not limited.
        """
        if self.peak_device_bytes is not None:
            peak = self.peak_device_bytes - self.peak_file_bytes
        elif self.peak_reserved_bytes is not None:
            peak = self.peak_reserved_bytes + (self.context_bytes or 0)
        else:
            return None
        return peak + max(0, self.accumulation_steps - self.accumulation_steps_run) * self.micro_batch_bytes

    @property
    def fits(self) -> float:
        """The study's constraint: peak / allowed - 1; feasible where <= 0.

        For an out-of-memory (held + refused) / allowed - 1, at least 0.01; 1.0 for other infeasible ends.
        """
        if self.outcome is Outcome.COMPLETED:
            if self.peak_bytes is None or not self.allowed_bytes:
                return 0.0
            return self.peak_bytes / self.allowed_bytes - 1
        if self.outcome is Outcome.OUT_OF_MEMORY:
            wanted = (self.held_bytes or 0) + (self.refused_bytes or 0)
            return max(wanted / self.allowed_bytes - 1 if self.allowed_bytes else 0.0, 0.01)
        return 1.0

    @property
    def feasible(self) -> bool:
        return self.outcome is Outcome.COMPLETED and self.fits <= 0

    @property
    def doubts(self) -> tuple[str, ...]:
        """What speaks against trusting the numbers; empty where nothing does."""
        doubts = list(self.observed_doubts)
        speed = self.samples_per_second
        if speed and not self.ended_early:
            if len(self.steps) < 3:
                doubts.append(f"only {len(self.steps)} timed step(s)")
            elif speed.relative_width > 0.10:
                doubts.append(f"interval {speed.relative_width:.0%} wide")
        return tuple(doubts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the log's tail stays in the log, which names paths of the machine."""
        return asdict(self) | {"outcome": self.outcome.value, "log_tail": ""}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Measurement":
        return cls(
            **{
                **data,
                "outcome": Outcome(data["outcome"]),
                "steps": tuple(Step(**step) for step in data["steps"]),
                "observed_doubts": tuple(data["observed_doubts"]),
            }
        )


def pooled(rounds: Sequence[Measurement]) -> Measurement:
    """Several completed measurements of one configuration as one: all their steps, the highest peak, every doubt.

    All must have run the same accumulation; raises ValueError where they have not or there are none.
    """
    if not rounds or len({one.accumulation_steps_run for one in rounds}) != 1:
        raise ValueError("only rounds with the same accumulation can be pooled")

    def highest(name: str) -> int | None:
        return max((value for one in rounds if (value := getattr(one, name)) is not None), default=None)

    return replace(
        rounds[0],
        steps=tuple(step for one in rounds for step in one.steps),
        untimed_steps=sum(one.untimed_steps for one in rounds),
        probe_seconds=sum(one.probe_seconds for one in rounds),
        peak_allocated_bytes=highest("peak_allocated_bytes"),
        peak_reserved_bytes=highest("peak_reserved_bytes"),
        peak_device_bytes=highest("peak_device_bytes"),
        observed_doubts=tuple(dict.fromkeys(doubt for one in rounds for doubt in one.observed_doubts)),
    )


def ratio_interval(counts: Sequence[float], seconds: Sequence[float]) -> Interval:
    """counts / seconds over all steps, with the 95 % interval of that ratio.

    The variance is that of the ratio estimator (Cochran, Sampling Techniques, 3rd ed., section 6.4): residuals
    count - ratio x seconds over n - 1 degrees of freedom. Neighbouring steps that resemble each other widen it by
    (1 + r) / (1 - r), r their lag-one correlation where that is positive (first-order autoregression).
    One step alone gives (0, infinity).
    """
    total, n = sum(seconds), len(seconds)
    ratio = sum(counts) / total
    if n < 2:
        return Interval(ratio, 0.0, math.inf)
    residuals = [count - ratio * second for count, second in zip(counts, seconds, strict=True)]
    squares = sum(residual**2 for residual in residuals)
    variance = squares / (n - 1)
    if n >= 4 and squares > 0:
        lagged = sum(a * b for a, b in pairwise(residuals)) / squares
        correlation = min(max(0.0, lagged), 0.9)
        variance *= (1 + correlation) / (1 - correlation)
    half = student_t_975(n - 1) * math.sqrt(variance * n) / total
    return Interval(ratio, max(0.0, ratio - half), ratio + half)


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, within 1 % from 3 degrees on (exact for 1 and 2).

    Expansion in the normal quantile: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    if degrees < 3:
        return {1: 12.706, 2: 4.303}[degrees]
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
