"""Measurement of a probe: raw facts, and values that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, Self

from autotune.core.interval import Interval, ratio_interval
from autotune.core.io import Serializable
from autotune.core.kept import Held, KeptSetting
from autotune.core.step import Step, composed_steps, drift
from autotune.core.warning import ResultWarning, WarningKind, merged

INPUT_BOUND = 0.10
"""Share of a step spent waiting for data from which a training is called input-bound."""

JOIN = " + "
"""Separator of the names of the devices that one measurement ran on."""

ROUNDS_THAT_TELL = 3
"""Rounds from which on their differences give the interval, not the differences of the steps within them."""

WIDE_PROBE, WIDE_ROUNDS = 0.50, 0.10
"""Full width of a speed's interval, as a share of it, from which on there is a warning: of a probe, of pooled rounds."""

LEAST_EXCESS = 0.01
"""Share of the allowed memory by which an out-of-memory exceeds it at least, in the study's constraint."""

LARGEST = 2.0**63
"""Number above all that is measured, in bytes, seconds or joules."""

HOST_STAGES = ("data", "host")
"""Stages in which an out-of-memory is not about the device."""


def _mean(part: str, meaning: str) -> property:
    """Mean of a part of the steps with the requested accumulation; None without steps."""

    def mean(measurement: "Measurement") -> float | None:
        return fmean(getattr(step, part) for step in measurement.composed_steps) if measurement.steps else None

    mean.__doc__ = meaning
    return property(mean)


class Outcome(StrEnum):
    """End of a probe."""

    COMPLETED = "completed"
    OUT_OF_MEMORY = "out_of_memory"
    NON_FINITE_LOSS = "non_finite_loss"
    UNSUPPORTED = "unsupported"
    MISCONFIGURED = "misconfigured"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Measurement(Serializable):
    """The raw facts of one probe. A completed one without a timed step cannot be built.

    Of several ranks: steps of the first one, the highest peak of any, the energy of all their devices.
    """

    outcome: Outcome  #: how the probe ended
    reason: str = ""  #: reason why it did not complete
    where: str = ""  #: stage in which it ended
    accumulation_steps: int = 1  #: requested
    accumulation_steps_run: int = 1  #: run in the probe; if fewer than requested, speed is composed
    data_parallel_size: int = 1  #: ranks
    steps: tuple[Step, ...] = ()  #: the timed ones
    rounds: tuple[int, ...] = ()  #: timed steps of each round if this pools several; empty: one round, all of them
    untimed_steps: int = 0  #: run before the timed ones
    ended_early: bool = False  #: it could not become the best any more
    allowed_bytes: int | None = None  #: bytes of memory that the probe was limited to
    context_bytes: int | None = None  #: bytes of device memory that a process holds before its first tensor
    peak_allocated_bytes: int | None = None  #: highest use in bytes of tensors
    peak_reserved_bytes: int | None = None  #: highest use in bytes of the allocator that makes them
    peak_device_bytes: int | None = None  #: highest use in bytes as the device or the kernel counts it
    peak_file_bytes: int = 0  #: of a CPU's peak, bytes of library files' pages: resident, but outside the limit
    held_bytes: int | None = None  #: bytes in use when memory ran out
    refused_bytes: int | None = None  #: bytes of the request that was refused
    tokens_per_sample: float | None = None  #: of average batches, with padding; None if all samples are as long
    micro_batch_bytes: int = 0  #: bytes of one micro-step's batch
    stage_peak_bytes: Mapping[str, int] = field(default_factory=dict)  #: stage -> highest use in bytes
    worst_batch: str = ""  #: origin of the batch on which memory was read; empty if all batches are alike
    allocator_retries: int = 0  #: times the device's allocator had to free its cache and retry; any: does not fit
    skipped_steps: int = 0  #: optimizer steps that fp16's loss scaling skipped
    compile_s: float = 0.0  #: seconds of compiling before the timed steps; a later confirmation's: the first one's
    recompiled_graphs: int = 0  #: compiled in the timed steps
    whole_fetch_s: float | None = None  #: seconds of one wait for all batches of a whole step; None unless few were run
    round: int = 0  #: number of the confirmation round, from 1; 0: a probe
    losses: tuple[float, ...] = ()  #: of a confirmation round with whole steps: mean loss of each of its first steps
    whole_because: str = ""  #: why it ran all micro-steps after it was measured with few of them; empty if it did not
    training_steps: int | None = None  #: of the run that this was measured for, if announced
    joules: float | None = None  #: the device's energy over the timed steps; None without a counter or below a second
    system_state: Mapping[str, Any] = field(default_factory=dict)  #: temperature, clocks, swap …, by name with its unit
    repeated_because: tuple[ResultWarning, ...] = ()  #: warnings of the measurements that this one repeats
    settings: Mapping[str, Any] = field(default_factory=dict)  #: read back from the running Trainer
    held: Held | None = None  #: contents of the user's micro-batches; None if they cannot be counted
    kept: tuple[KeptSetting, ...] = ()  #: settings that keep the user's value, as this training showed
    asked: Mapping[str, Any] = field(default_factory=dict)  #: requested by the configuration
    left_out: Mapping[str, str] = field(default_factory=dict)  #: the user's callbacks that failed -> their errors
    callbacks_s: float = 0.0  #: on a CPU, mean seconds that the user's callbacks take in a step as it is run
    seconds_to_first_line: float | None = None  #: seconds from the order to the child's first line
    probe_seconds: float = 0.0  #: seconds of the whole probe
    started_s: float | None = field(default=None, compare=False)  #: seconds since the epoch; None: not known
    device: str = ""  #: of several devices of a search the one that measured this
    observed_warnings: tuple[ResultWarning, ...] = ()  #: observations around the probe that make its numbers doubtful
    log_tail: str = field(default="", compare=False)  #: the end of its output

    def __post_init__(self) -> None:
        if self.outcome is Outcome.COMPLETED and not self.steps:
            raise ValueError("a completed measurement carries at least one timed step")

    @cached_property
    def composed_steps(self) -> list[Step]:
        """The timed steps with the accumulation that was requested, each as long as the data's steps are on average."""
        return composed_steps(self.steps, self.accumulation_steps_run, self.accumulation_steps, self.tokens_per_sample)

    @property
    def is_composed(self) -> bool:
        """True if fewer micro-steps were run than requested."""
        return self.accumulation_steps_run < self.accumulation_steps

    @property
    def as_whole(self) -> "Measurement":
        """The same as if all micro-steps had been run."""
        if not self.is_composed or not self.steps:
            return self
        composed = tuple(self.composed_steps)
        longer = sum(step.seconds for step in composed) / sum(step.seconds for step in self.steps)
        peaks = {name: getattr(self, name) for name in ("peak_reserved_bytes", "peak_device_bytes")}
        return replace(
            self,
            steps=composed,
            accumulation_steps_run=self.accumulation_steps,
            joules=self.joules and self.joules * longer,
            **{name: peak and peak + self._unfetched_bytes for name, peak in peaks.items()},
        )

    @property
    def _unfetched_bytes(self) -> int:
        """Bytes of the batches of a step that were not fetched: the Trainer fetches all of a step before it trains."""
        return max(0, self.accumulation_steps - self.accumulation_steps_run) * self.micro_batch_bytes

    @cached_property
    def samples_per_second(self) -> Interval | None:
        """Samples of the global batch / second over all timed steps, with its interval; None unless completed."""
        return self._rate("samples")

    @property
    def tokens_per_second(self) -> Interval | None:
        """Tokens / second, padding included; None unless completed with samples that have tokens."""
        return self._rate("tokens") if any(step.tokens for step in self.steps) else None

    @property
    def non_padding_tokens_per_second(self) -> Interval | None:
        """Tokens / second, padding left out; None unless completed with samples that have tokens."""
        return self._rate("non_padding_tokens") if any(step.non_padding_tokens for step in self.steps) else None

    @property
    def joules_per_sample(self) -> float | None:
        """The device's energy / sample, composed as the speed is at the power that was measured; None if unknown."""
        if self.joules is None or not self.steps:
            return None
        watts = self.joules / sum(step.seconds for step in self.steps)
        composed = self.composed_steps
        samples = self.data_parallel_size * sum(step.samples for step in composed)
        return watts * sum(step.seconds for step in composed) / samples

    def _rate(self, counted: str) -> Interval | None:
        if self.outcome is not Outcome.COMPLETED:
            return None
        steps = self.composed_steps
        counts = [getattr(step, counted) * self.data_parallel_size for step in steps]
        seconds = [step.seconds for step in steps]
        if len(self.rounds) < ROUNDS_THAT_TELL:
            return ratio_interval(counts, seconds)
        parts = [slice(*ends) for ends in pairwise([0, *accumulate(self.rounds)])]
        return ratio_interval([sum(counts[part]) for part in parts], [sum(seconds[part]) for part in parts], memory=0.5)

    @property
    def step_time_s(self) -> float | None:
        """Mean seconds of an optimizer step with the requested accumulation."""
        return fmean(step.seconds for step in self.composed_steps) if self.steps else None

    @property
    def starting_s(self) -> float:
        """Seconds of a probe outside its steps: its start and end, the model, the data."""
        in_steps = sum(step.seconds for step in self.steps)
        in_steps *= 1 + self.untimed_steps / len(self.steps) if self.steps else 1.0
        return max(0.0, self.probe_seconds - in_steps)

    @property
    def after_compiling(self) -> float:
        """Share of the settled speed that remains over a run of training_steps that begins by compiling."""
        if not self.training_steps or not self.step_time_s:
            return 1.0
        return self.step_time_s / (self.step_time_s + self.compile_s / self.training_steps)

    @property
    def micro_step_time_s(self) -> float | None:
        """Mean seconds of a forward and backward (without fetching, clipping and the optimizer)."""
        if not self.steps:
            return None
        run = self.accumulation_steps_run
        busy = sum(s.first_s + s.middle_s * max(0, run - 2) + s.last_s - s.optimizer_s for s in self.steps)
        usual = composed_steps(self.steps, run, run, self.tokens_per_sample)
        longer_s = sum(step.computing_s for step in usual) - sum(step.computing_s for step in self.steps)
        return (busy + longer_s) / len(self.steps) / run

    optimizer_step_time_s = _mean("optimizer_s", "Mean seconds of clipping and the optimizer's step.")
    data_wait_s = _mean(
        "data_wait_s", "Mean seconds a step waits for its micro-batches, with the requested accumulation."
    )
    forward_time_s = _mean(
        "forward_s", "Mean seconds a step spends in all its forward passes, with the requested accumulation."
    )
    backward_time_s = _mean(
        "backward_s", "Mean seconds a step spends in all its backward passes, with the requested accumulation."
    )
    overhead_time_s = _mean("overhead_s", "Mean seconds of a step outside all parts: the Trainer's own work.")

    @property
    def data_wait_share(self) -> float | None:
        """The share of a step's time in which it waits for its micro-batches."""
        wait, step = self.data_wait_s, self.step_time_s
        return None if wait is None or not step else wait / step

    @property
    def input_bound(self) -> bool:
        """True if the data loader holds the training up."""
        return (self.data_wait_share or 0.0) >= INPUT_BOUND

    @property
    def peak_bytes(self) -> int | None:
        """The peak in bytes that is compared with the limit: the device's figure if known, else reserved and context.

        On a CPU without library files' pages, which are resident but not limited.
        """
        if self.peak_device_bytes is not None:
            peak = self.peak_device_bytes - self.peak_file_bytes
        elif self.peak_reserved_bytes is not None:
            peak = self.peak_reserved_bytes + (self.context_bytes or 0)
        else:
            return None
        return peak + self._unfetched_bytes

    @property
    def fits(self) -> float:
        """The study's constraint: peak / allowed - 1; feasible if <= 0.

        For an out-of-memory (held + refused) / allowed - 1, at least 0.01; 1.0 for other infeasible ends.
        """
        if self.outcome is Outcome.COMPLETED:
            peak, allowed = self.peak_bytes, self.allowed_bytes
            excess = 0.0 if peak is None or not allowed else peak / allowed - 1
            # An allocator that had to retry had no memory left, whatever it held a moment later.
            return max(excess, LEAST_EXCESS) if self.allocator_retries else excess
        if self.outcome is Outcome.OUT_OF_MEMORY:
            wanted = (self.held_bytes or 0) + (self.refused_bytes or 0)
            return max(wanted / self.allowed_bytes - 1 if self.allowed_bytes else 0.0, LEAST_EXCESS)
        return 1.0

    @property
    def feasible(self) -> bool:
        """True if it completed within the memory allowed."""
        return self.outcome is Outcome.COMPLETED and self.fits <= 0

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Reasons not to trust the numbers."""
        warnings = list(self.observed_warnings)
        speed = self.samples_per_second
        if speed and not self.ended_early:
            if len(self.steps) < 3:
                warnings.append(ResultWarning(WarningKind.FEW_STEPS, {"steps": len(self.steps)}))
            elif speed.relative_width > (WIDE_ROUNDS if self.rounds else WIDE_PROBE):
                warnings.append(ResultWarning(WarningKind.WIDE_INTERVAL, {"width": speed.relative_width}))
            if self.recompiled_graphs:
                warnings.append(ResultWarning(WarningKind.RECOMPILED, {"graphs": self.recompiled_graphs}))
            if change := drift(self.composed_steps):
                kind = WarningKind.FASTER if change > 0 else WarningKind.SLOWER
                warnings.append(ResultWarning(kind, {"change": abs(change)}))
        return tuple(warnings)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """`Serializable.from_dict`; raises ValueError also for a number that nothing can measure."""
        measurement = super().from_dict(data)
        values = [*vars(measurement).values(), *measurement.stage_peak_bytes.values(), *measurement.rounds]
        values += [value for step in measurement.steps for value in vars(step).values()]
        if wrong := [value for value in values if isinstance(value, (int, float)) and not 0 <= value < LARGEST]:
            raise ValueError(f"{wrong[0]} was not measured")
        return measurement

    def to_dict(self) -> dict[str, Any]:
        """Plain data; the log's tail stays in the log, which names paths of the machine."""
        plain = super().to_dict() | {"log_tail": ""}
        optional = ("device", "started_s", "tokens_per_sample", "held", "kept")
        unset = {name for name in (*optional, "left_out", "callbacks_s") if not plain[name]}
        return {name: value for name, value in plain.items() if name not in unset}


def pooled(rounds: Sequence[Measurement]) -> Measurement:
    """Completed measurements of one configuration as one, with whole steps: all their steps, the highest peak, every warning.

    Raises ValueError without any, and if their accumulation differs.
    """
    if not rounds or len({measured.accumulation_steps for measured in rounds}) != 1:
        raise ValueError("only rounds with the same accumulation can be pooled")
    rounds = [measured.as_whole for measured in rounds]

    def values(name: str) -> list[Any]:
        return [value for measured in rounds if (value := getattr(measured, name)) is not None]

    def joined(name: str) -> list[Any]:
        return [item for items in values(name) for item in items]

    summed = ("untimed_steps", "probe_seconds", "allocator_retries", "skipped_steps", "recompiled_graphs")
    highest = max(rounds, key=lambda measured: measured.peak_bytes or 0)
    joules = values("joules")
    return replace(
        rounds[0],
        steps=tuple(joined("steps")),
        rounds=tuple(len(measured.steps) for measured in rounds),
        peak_allocated_bytes=max(values("peak_allocated_bytes"), default=None),
        peak_reserved_bytes=max(values("peak_reserved_bytes"), default=None),
        peak_device_bytes=highest.peak_device_bytes,
        peak_file_bytes=highest.peak_file_bytes,
        stage_peak_bytes={
            stage: max(measured.stage_peak_bytes.get(stage, 0) for measured in rounds)
            for stage in dict.fromkeys(joined("stage_peak_bytes"))
        },
        joules=sum(joules) if len(joules) == len(rounds) else None,
        device=", ".join(dict.fromkeys(filter(None, values("device")))),
        observed_warnings=merged(joined("observed_warnings")),
        repeated_because=merged(joined("repeated_because")),
        whole_because="; ".join(dict.fromkeys(filter(None, values("whole_because")))),
        **{name: sum(values(name)) for name in summed},
    )
