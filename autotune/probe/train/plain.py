"""Plain training of a study's result, timed at the end of each step.

|-- untimed steps --| synchronise |-- step --|-- step --| ... |-- step --| synchronise
                      surroundings                                           surroundings
"""

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import TrainingOrder
from autotune.probe.train.memory_limit import memory_of
from autotune.probe.train.run import prepared_trainer

UNTIMED = 10
"""First steps that do not count: memory is still allocated, kernels chosen, workers started."""


def run(order: TrainingOrder, objects: bytes, scratch: Path) -> dict[str, Any]:
    """Train for `order.request["steps"]` timed steps, at most for `order.request["seconds"]` (None: no limit).

    Returns step_times_s and data_wait_s (of each timed step), samples and seconds (of all of them), untimed_steps; peaks,
    joules, surroundings and observed_warnings as in a Measurement. Raises RuntimeError where no step was timed.
    """
    steps, seconds = order.request["steps"], order.request.get("seconds")
    untimed = untimed_steps(steps)
    memory = memory_of(order)
    surroundings = MachineMonitor(order.environment)
    clock = Clock(untimed, steps, seconds, surroundings, cuda=not order.environment.is_cpu)
    try:
        trainer = prepared_trainer(order, objects, scratch, memory, untimed + steps)
        trainer.get_batch_samples = partial(clock.fetch, trainer.get_batch_samples)
        trainer.add_callback(clock)
        trainer.train()
    finally:
        memory.release()
    times = [end - begun for begun, end in pairwise(clock.ends)]
    if not times:
        raise RuntimeError("the training ended without a timed step")
    return {
        "step_times_s": times,
        "data_wait_s": clock.waits[untimed : untimed + len(times)],
        "samples": trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * len(times),
        "seconds": sum(times),
        "untimed_steps": untimed,
        "peaks": {name: value for name, value in memory.peaks().items() if name != "stage_peak_bytes"},
        "joules": surroundings.joules,
        "surroundings": surroundings.facts(),
        "observed_warnings": list(surroundings.warnings()),
    }


def untimed_steps(steps: int) -> int:
    """Untimed steps before so many timed ones: 10, at most a fifth as many, at least one."""
    return min(UNTIMED, max(1, steps // 5))


class Clock(TrainerCallback):  # type: ignore[misc]
    """Reads the clock at each step's end, and waits for the device only where the timed steps begin and end.

    ends: seconds, of the last untimed step and every timed one. waits: seconds of every step's fetching.
    """

    def __init__(
        self, untimed: int, steps: int, seconds: float | None, surroundings: MachineMonitor, cuda: bool = False
    ) -> None:
        self.ends: list[float] = []
        self.waits: list[float] = []
        self._untimed, self._steps, self._seconds, self._cuda = untimed, steps, seconds or math.inf, cuda
        self._surroundings = surroundings

    def fetch(self, fetch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Fetch a step's micro-batches as the Trainer does, timed."""
        begun = time.perf_counter()
        fetched = fetch(*args, **kwargs)
        self.waits.append(time.perf_counter() - begun)
        return fetched

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step < self._untimed:
            return
        last = state.global_step >= self._untimed + self._steps or self._time_is_up()
        if self._cuda and (last or not self.ends):
            torch.cuda.synchronize()
        if not self.ends:
            self._surroundings.start()
        self.ends.append(time.perf_counter())
        if last:
            self._surroundings.stop()
            control.should_training_stop = True

    def _time_is_up(self) -> bool:
        return bool(self.ends) and time.perf_counter() - self.ends[0] >= self._seconds
