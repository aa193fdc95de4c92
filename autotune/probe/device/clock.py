"""Points in time of a training: the host's clock on a CPU, events of the stream on CUDA."""

import time
from typing import Any

import torch

from autotune.core import Environment


class HostClock:
    """Clock of a CPU, on which an operation has ended when its call returns.

    `now` is the host's time in seconds. A mark is a point in the order of operations: the device passes it when it has done
    everything before.
    """

    def now(self) -> float:
        return time.perf_counter()

    def mark(self) -> Any:
        return self.now()

    def between(self, begun: Any, ended: Any) -> float:
        """Seconds of the device between two marks that it has passed."""
        return float(ended - begun)

    def passed(self, mark: Any) -> bool:
        return bool(mark <= self.now())

    def wait_for(self, mark: Any) -> None:
        """Wait until the device has passed this mark."""

    def synchronize(self) -> None:
        """Wait until the device has done everything."""


class CudaClock(HostClock):
    """Clock of a GPU, which works off what the host has queued: marks are events of the current stream."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begun: Any, ended: Any) -> float:
        return float(begun.elapsed_time(ended)) / 1000

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def wait_for(self, mark: Any) -> None:
        mark.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def clock_of(environment: Environment) -> HostClock:
    """The clock of this device."""
    return HostClock() if environment.is_cpu else CudaClock()
