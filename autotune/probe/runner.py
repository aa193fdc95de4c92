"""LiveProbe: the Probe that measures by real trainings in child processes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import Configuration, Environment, Measurement, Outcome, Workload
from autotune.core.failures import Failure
from autotune.core.interval import Interval, quotient_of_means
from autotune.core.loss_curves import LEAST_STEPS
from autotune.core.slot import Slot
from autotune.core.step import MICRO_STEPS
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe import Host, ProbeOptions
from autotune.probe.order import LOSSES, Timing, TrainingOrder, remove_answers, timings
from autotune.probe.process.answers import attempt, read_answer
from autotune.space.settings import SETTINGS
from autotune.space.setup import training_setup

PREFETCH_FACTOR = 2
"""Batches that each worker of torch's DataLoader prepares ahead by default."""

READY_SHARE = 0.01
"""Share of a step by which the wait for all of its batches may differ from the composed one."""

COMPOSED_WITHIN = 0.03
"""Share by which a composed speed may differ from that of whole steps, whatever the intervals say: two processes of one
configuration differ by as much."""


@dataclass
class LiveProbe:
    """The Probe that measures by real trainings in child processes.

    base: the user's TrainingArguments as fields that differ from the defaults. allowed_bytes: limit x (1 - headroom).
    folder: of the files of a measurement. device_used: bytes in use on the device now and by
    whom, None on a CPU. timings: of a probe and of a confirmation round; None: those of the device. left_out: classes of the
    user's callbacks that are left out, as they failed -> their errors; the probes of a study share it.
    """

    host: Host
    environment: Environment
    workload: Workload
    base: Mapping[str, Any]
    allowed_bytes: int
    folder: Callable[[Slot], Path]
    objective: str = "samples_per_second"
    device_used: Callable[[], tuple[int, list[str]] | None] = lambda: None
    timings: tuple[Timing, Timing] | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        accumulation = configuration.gradient_accumulation_steps
        whole = options.slot.round and options.whole_speed is None
        run = accumulation if whole else self._micro_steps(configuration)
        measurement = self._measure(self._probe_order(configuration, options, run))
        if run < accumulation and (why := _not_composed(measurement, options.whole_speed)):
            measurement = self._measure(self._probe_order(configuration, options, accumulation))
            measurement = replace(measurement, whole_because=why)
        remove_answers(self.folder(options.slot))
        return measurement

    def order(
        self, configuration: Configuration, kind: str, folder: Path, deadline_s: float, **more: Any
    ) -> TrainingOrder:
        """An order to train this configuration, with further fields; all micro-steps by default."""
        setup = training_setup(configuration, self.environment, self.base, self.workload.task)
        return TrainingOrder(
            **{
                "kind": kind,
                "folder": str(folder.absolute()),
                "deadline_s": deadline_s,
                "configuration": configuration,
                **{name: value for name, value in vars(setup).items() if name != "processes"},
                "workload": self.workload,
                "environment": self.environment,
                "accumulation_steps_run": configuration.gradient_accumulation_steps,
                "allowed_bytes": self.allowed_bytes,
                "without": tuple(self.left_out),
                **more,
            }
        )

    def train(
        self,
        kind: str,
        configuration: Configuration,
        folder: Path,
        deadline_s: float,
        request: Mapping[str, Any],
        **more: Any,
    ) -> tuple[Any, Failure | None]:
        """Carry out an order of another kind than a probe: (its plain data, None), or (None, why it failed).

        more: further fields of the order. A sanity check runs as few micro-steps as a probe.
        """
        if kind == "sanity_check":
            more = {"accumulation_steps_run": self._micro_steps(configuration), **more}
        before = self.device_used()
        used = None if before is None else before[0]
        order = self.order(configuration, kind, folder, deadline_s, request=request, device_used_bytes=used, **more)
        reply = attempt(self.host, order)
        if used is not None:
            self._wait_for_memory(used)
        return reply

    def _micro_steps(self, configuration: Configuration) -> int:
        """Micro-steps of a step from which all are composed."""
        accumulation = configuration.gradient_accumulation_steps
        return accumulation if self.workload.whole_steps else min(accumulation, MICRO_STEPS)

    def _probe_order(
        self, configuration: Configuration, options: ProbeOptions, accumulation_steps_run: int
    ) -> TrainingOrder:
        return self.order(
            configuration,
            "probe",
            self.folder(options.slot),
            options.deadline_s,
            number=options.slot.number,
            confirmation=options.slot.round,
            accumulation_steps_run=accumulation_steps_run,
            timing=self.timing(configuration, options, accumulation_steps_run),
            count_tokens=self.objective == "tokens_per_second",
            speed_to_reach=None if options.best_so_far is None else options.best_so_far.low,
            held=options.held,
        )

    def timing(self, configuration: Configuration, options: ProbeOptions, accumulation_steps_run: int) -> Timing:
        """The timing, with enough untimed steps to use up the batches that workers prepared while the model was built."""
        if options.losses:
            timed = max(LEAST_STEPS, options.losses) - LOSSES.untimed_most
            return replace(LOSSES, timed_least=timed, timed_most=timed)
        fields = training_setup(configuration, self.environment, self.base).training_arguments
        ready = fields.get("dataloader_num_workers", 0) * (fields.get("dataloader_prefetch_factor") or PREFETCH_FACTOR)
        own = self.timings or timings(self.environment.is_cpu)
        timing, least = own[bool(options.slot.round)], 1 + -(-ready // accumulation_steps_run)
        period = max(SETTINGS[name].costs.period(value) for name, value in configuration.values.items())
        return replace(
            timing,
            untimed_least=max(timing.untimed_least, least),
            untimed_most=max(timing.untimed_most, least),
            timed_least=max(timing.timed_least, period),
            timed_most=max(timing.timed_most, period),
        )

    def _measure(self, order: TrainingOrder) -> Measurement:
        """The measurement of a probe; without a callback of the user's that ended it, measured again."""
        measurement = self._measured(order)
        while measurement.outcome is Outcome.CRASHED and not measurement.left_out.keys() <= {*order.without}:
            self.left_out |= measurement.left_out
            order = replace(order, without=tuple(self.left_out))
            measurement = self._measured(order)
        without = {name: self.left_out[name] for name in order.without}
        return replace(measurement, left_out={**without, **measurement.left_out})

    def _measured(self, order: TrainingOrder) -> Measurement:
        before, began = self.device_used(), time.time()
        info = self.host.run(order if before is None else replace(order, device_used_bytes=before[0]))
        measurement = replace(read_answer(order, info), started_s=began)
        if before is not None:
            self._wait_for_memory(before[0])  # else the probe that just ended would count as another process
            after = self.device_used()
            if foreign := sorted({*before[1], *(after[1] if after else ())}):
                warning = ResultWarning(WarningKind.SHARED_DEVICE, detail=", ".join(foreign))
                measurement = replace(measurement, observed_warnings=(*measurement.observed_warnings, warning))
        return measurement

    def _wait_for_memory(self, before: int, seconds: float = 10.0) -> None:
        """Wait until the driver has freed a dead process's memory, which the next probe needs."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            used = self.device_used()
            if used is None or used[0] <= before + (64 << 20):
                return
            time.sleep(0.05)


def _not_composed(measurement: Measurement, whole_speed: Interval | None) -> str:
    """Reason why the speed of all micro-steps cannot be composed from these few; empty if it can.

    whole_speed: samples / second with all of them, as measured in earlier rounds.
    """
    if not waits_as_composed(measurement):
        return "the wait for a whole step's batches was not that of few micro-steps"
    if whole_speed is None or (composed := measurement.samples_per_second) is None:
        return ""
    ratio = quotient_of_means(whole_speed, composed)
    if ratio.low <= 1 <= ratio.high or abs(ratio - 1) <= COMPOSED_WITHIN:
        return ""
    return f"a step composed of {MICRO_STEPS} micro-steps took {ratio:.2f} times as long as a whole one"


def waits_as_composed(measurement: Measurement) -> bool:
    """True if the wait for data can be composed, as far as it was tried.

    Loading in the training process adds up. Workers have some batches ready, enough for a step of three micro-steps, and the
    device waits for the rest of a long one: then all micro-steps must be run.
    """
    if measurement.outcome is not Outcome.COMPLETED or measurement.whole_fetch_s is None:
        return True
    difference = measurement.whole_fetch_s - (measurement.data_wait_s or 0.0)
    return abs(difference) <= READY_SHARE * (measurement.step_time_s or 0.0)
