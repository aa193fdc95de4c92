"""Plain training of a study's result: the Trainer as anyone runs it, and a clock read at each step's end.

|-- untimed steps --| synchronise |-- step --|-- step --| ... |-- step --| synchronise
                      surroundings                                           surroundings
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from autotune.probe.device.machine import MachineMonitor
from autotune.probe.order import Order
from autotune.probe.train.memory_limit import memory_of
from autotune.probe.train.run import prepared_trainer

UNTIMED = 10
"""First steps that do not count: memory is still being asked for, kernels chosen, workers started."""


def run(order: Order, objects: bytes, scratch: Path) -> dict[str, Any]:
    """Train the ordered configuration for `steps` timed steps, or until `seconds` (None: no limit) are over.

    Both stand in order.request. Brings back step_times_s and data_wait_s (of each timed step), samples and seconds (of
    all of them), untimed_steps; peaks, joules, surroundings and observed_warnings as of a Measurement.
    Raises what the training raises; RuntimeError where it ended without a timed step.
    """
    steps, seconds = order.request["steps"], order.request.get("seconds")
    untimed = untimed_steps(steps)
    memory = memory_of(order)
    assert order.environment is not None
    surroundings = MachineMonitor(order.environment)
    clock = Clock(untimed, steps, seconds, surroundings, cuda=not order.environment.is_cpu)
    try:
        trainer = prepared_trainer(order, objects, scratch, memory, untimed + steps)
        trainer.get_batch_samples = clock.around(trainer.get_batch_samples)
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
    """How many steps come before so many timed ones: 10, at most a fifth, and one at the least, to begin at its end."""
    return min(UNTIMED, max(1, steps // 5))


class Clock(TrainerCallback):  # type: ignore[misc]
    """Reads the clock at each step's end, and waits for the device only where the timed steps begin and end.

    ends: seconds, of the last untimed step and every timed one. waits: seconds, of every step's fetching. The surroundings
    are read where the device is waited for, outside of the timed steps.
    """

    def __init__(
        self, untimed: int, steps: int, seconds: float | None, surroundings: MachineMonitor, cuda: bool = False
    ) -> None:
        self.ends: list[float] = []
        self.waits: list[float] = []
        self._untimed, self._steps, self._seconds, self._cuda = untimed, steps, seconds, cuda
        self._surroundings = surroundings

    def around(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """The Trainer's fetching of a step's micro-batches, timed."""

        def fetching(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            fetched = fetch(*args, **kwargs)
            self.waits.append(time.perf_counter() - begun)
            return fetched

        return fetching

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step < self._untimed:
            return
        last = state.global_step >= self._untimed + self._steps or self._time_is_over()
        if self._cuda and (last or not self.ends):
            torch.cuda.synchronize()
        if not self.ends:
            self._surroundings.start()
        self.ends.append(time.perf_counter())
        if last:
            self._surroundings.stop()
            control.should_training_stop = True

    def _time_is_over(self) -> bool:
        if self._seconds is None or not self.ends:
            return False
        return time.perf_counter() - self.ends[0] >= self._seconds
