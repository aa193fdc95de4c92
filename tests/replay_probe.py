"""ReplayProbe: a probe that answers from a table, for tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.core import Configuration, Measurement, Outcome, Step
from autotune.probe import ProbeOptions


@dataclass
class ReplayProbe:
    """A probe that looks its answer up; raises KeyError for a configuration that was never recorded.

    table: configuration -> measurement, or a function that makes it. asked: what was asked for so far, in order.
    """

    table: Mapping[Configuration, Measurement] | Callable[[Configuration], Measurement]
    asked: list[tuple[Configuration, ProbeOptions]] = field(default_factory=list)

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        self.asked.append((configuration, options))
        return self.table(configuration) if callable(self.table) else self.table[configuration]


def recorded(
    configuration: Configuration,
    samples_per_second: float,
    peak_bytes: int,
    allowed_bytes: int,
    spread: float = 0.01,
    steps: int = 6,
    run: int | None = None,
) -> Measurement:
    """The measurement of a probe that ran at this speed (+- spread from step to step) with this peak.

    A peak above allowed_bytes makes an out-of-memory in the forward pass. run: micro-steps, by default all of a step.
    """
    if peak_bytes > allowed_bytes:
        return Measurement(
            Outcome.OUT_OF_MEMORY,
            reason="the recorded peak lies above the limit",
            where="forward",
            accumulation_steps=configuration.gradient_accumulation_steps,
            allowed_bytes=allowed_bytes,
            held_bytes=peak_bytes,
            refused_bytes=0,
        )
    mean = configuration.global_batch_size / samples_per_second
    samples = configuration.global_batch_size // configuration.data_parallel_size
    accumulation = configuration.gradient_accumulation_steps
    run = run or accumulation
    times = [mean * (1 + spread * (-1) ** index) * run / accumulation for index in range(steps)]
    samples = samples * run // accumulation
    return Measurement(
        Outcome.COMPLETED,
        accumulation_steps=accumulation,
        accumulation_steps_run=run,
        data_parallel_size=configuration.data_parallel_size,
        steps=tuple(_step(seconds, run, samples, run < accumulation) for seconds in times),
        untimed_steps=2,
        allowed_bytes=allowed_bytes,
        peak_device_bytes=peak_bytes,
        probe_seconds=sum(times),
    )


def _step(seconds: float, run: int, samples: int, is_part: bool) -> Step:
    """A step of so many equal micro-steps, which are told apart if the step is a part of one."""
    micro = seconds / run if is_part else 0.0
    return Step(seconds, 0.0, micro, micro, micro or seconds, (micro or seconds) / 10, samples, 0)
