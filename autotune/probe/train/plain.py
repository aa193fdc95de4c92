"""Plain training of a study's result, timed at the end of each step.

|-- untimed steps --| synchronise |-- step --|-- step --| ... |-- step --| synchronise
                      system state                                           system state
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from autotune.probe.device.clock import HostClock, clock_of
from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import Timing, TrainingOrder
from autotune.probe.train.adaptive import settled
from autotune.probe.train.control import TrialControl
from autotune.probe.train.fields import data_seed
from autotune.probe.train.memory_limit import memory_of
from autotune.probe.train.run import heap_layout, most_steps, prepared_trainer


def run(order: TrainingOrder, objects: bytes, scratch: Path) -> dict[str, Any]:
    """Train for as many steps and as long as the order's timing says; what it says of an interval counts for nothing.

    In a round whose number the request has, the samples come in an order of that round. Returns step_times_s and data_wait_s
    (of each timed step), samples and seconds (of all of them), untimed_steps; peaks, joules, system_state and observed_warnings
    as in a Measurement. Raises RuntimeError if no step was timed.
    """
    layout = heap_layout()
    memory = memory_of(order)
    monitor = MachineMonitor(order.environment)
    timer = PlainTimer(order.timing, monitor, clock_of(order.environment))
    try:
        seed = data_seed(order, order.request.get("round", 0))
        trainer = prepared_trainer(order, objects, scratch, memory, most_steps(order), data_seed=seed)
        trainer.get_batch_samples = partial(timer.fetch, trainer.get_batch_samples)
        TrialControl(trainer, timer, most_steps(order), order.configuration.gradient_accumulation_steps)
        trainer.train()
    finally:
        memory.release()
    del layout
    times = [end - begun for begun, end in pairwise(timer.ends)]
    if not times:
        raise RuntimeError("the training ended without a timed step")
    return {
        "step_times_s": times,
        "data_wait_s": timer.waits[timer.untimed : timer.untimed + len(times)],
        "samples": trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * len(times),
        "seconds": sum(times),
        "untimed_steps": timer.untimed,
        "peaks": {name: value for name, value in memory.peaks().items() if name != "stage_peak_bytes"},
        "joules": monitor.joules,
        "system_state": monitor.facts(),
        "observed_warnings": [warning.to_dict() for warning in monitor.warnings()],
    }


class PlainTimer(TrainerCallback):  # type: ignore[misc]
    """Reads the host's clock at each step's end, and waits for the device only if the timed steps begin and end.

    ends: seconds, of the last untimed step and every timed one. untimed: steps before them.
    """

    def __init__(self, timing: Timing, monitor: MachineMonitor, clock: HostClock) -> None:
        self.ends: list[float] = []
        self._timing, self._clock = timing, clock
        self._monitor = monitor
        self._untimed_s: list[float] = []
        self._untimed_end = math.nan
        self._clocks_mhz: list[float | None] = []
        self._fetches: list[tuple[Any, Any]] = []

    @property
    def untimed(self) -> int:
        return len(self._untimed_s)

    @property
    def waits(self) -> list[float]:
        """Seconds that the device waited for each step's batches; waits for the device."""
        self._clock.synchronize()
        return [self._clock.between(*ends) for ends in self._fetches]

    def fetch(self, fetch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Fetch a step's micro-batches as the Trainer does, timed."""
        begun = self._clock.mark()
        fetched = fetch(*args, **kwargs)
        self._fetches.append((begun, self._clock.mark()))
        return fetched

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        now = self._clock.now()
        if not self.ends:
            self._untimed_s.append(now - self._untimed_end)
            self._untimed_end = now
            self._clocks_mhz.append(self._monitor.sm_clock_mhz())
            is_early = self.untimed < self._timing.untimed_least
            if is_early or (self._timing.window_s and not settled(self._untimed_s, self._timing, self._clocks_mhz)):
                return
        last = self._is_over(len(self.ends), now)
        if last or not self.ends:
            self._clock.synchronize()
        if not self.ends:
            self._monitor.start()
        self.ends.append(self._clock.now())
        if last:
            self._monitor.stop()
            control.should_training_stop = True

    def _is_over(self, timed: int, now: float) -> bool:
        """True if this is the end of the last step; timed: number of timed steps so far."""
        timing = self._timing
        seconds = now - self.ends[0] if self.ends else 0.0
        is_long = seconds >= max(timing.seconds, timing.timed_seconds_least)
        return timed >= timing.timed_most or (timed >= timing.timed_least and is_long)
