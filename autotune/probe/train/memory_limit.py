"""Memory limit and memory peaks of a training, of a CPU's process or a GPU's allocator."""

import contextlib
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import torch

from autotune.probe.order import UNTOUCHED_BYTES, TrainingOrder
from autotune.probe.process.ranks import this_rank

BUILD = "build"
"""The first stage: the model is built."""


def memory_of(order: TrainingOrder) -> "HostMemory | DeviceMemory":
    """The limited memory of a training: its GPU's, or on a CPU the host's."""
    return HostMemory(order) if order.environment.is_cpu else DeviceMemory(order)


class HostMemory:
    """A CPU's memory: RLIMIT_DATA above what the process has at the start; peaks of what counts against it.

    That is resident memory, and data that are not resident (holes that batches of many shapes leave in the heap) beyond the
    UNTOUCHED_BYTES that every training has.
    """

    def __init__(self, order: TrainingOrder) -> None:
        self._allowed = order.allowed_bytes
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        self._resident, self._files, self._data = _status("VmRSS"), _status("RssFile"), _status("VmData")
        self._untouched = _untouched() + UNTOUCHED_BYTES
        self._stage = ""
        self._stages: dict[str, int] = {}
        self._highest = self._highest_own = 0

    def hold(self) -> None:
        """Limit this process to allowed_bytes beyond what it has now; loader workers are not limited."""
        self._stage = BUILD
        self._reset_peak()
        if self._allowed is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (self._data + self._allowed, self._before[1]))
            os.register_at_fork(after_in_child=self.release)
            free_programs(self._before)

    def enter(self, stage: str) -> None:
        """Begin a stage, or with "" none: the peak so far belongs to the one before."""
        self._note()
        self._stage = stage
        self._reset_peak()

    def held(self) -> int:
        """Bytes of data beyond the start."""
        return max(0, _status("VmData") - self._data)

    def release(self) -> None:
        """Lift the limit, so that the answer can be written."""
        resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def peaks(self) -> dict[str, Any]:
        """Peak_device_bytes: the highest beyond the start.

        By stage, and less peak_file_bytes, without the pages of library files.
        """
        self._note()
        return {
            "peak_device_bytes": self._highest,
            "peak_file_bytes": self._highest - self._highest_own,
            "stage_peak_bytes": dict(self._stages),
        }

    def _reset_peak(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark

    def _note(self) -> None:
        holes = max(0, _untouched() - self._untouched)
        peak = max(0, _status("VmHWM") - self._resident) + holes
        own = max(0, peak - max(0, _status("RssFile") - self._files))
        self._highest, self._highest_own = max(self._highest, peak), max(self._highest_own, own)
        if self._stage:
            self._stages[self._stage] = max(self._stages.get(self._stage, 0), own)


def free_programs(limits: tuple[int, int]) -> None:
    """Give programs that this process starts (a compiler) these limits of data instead of its own."""
    start = subprocess.Popen.__init__

    def started(self: Any, *args: Any, **kwargs: Any) -> None:
        start(self, *args, **kwargs)
        with contextlib.suppress(OSError):  # it has ended
            resource.prlimit(self.pid, resource.RLIMIT_DATA, limits)

    setattr(subprocess.Popen, "__init__", started)  # noqa: B010  # mypy takes no assignment to a method


def _untouched() -> int:
    """Bytes of data that are not resident."""
    return _status("VmData") - _status("RssAnon")


def _status(name: str) -> int:
    """A size from /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


class DeviceMemory:
    """A GPU's memory: the allocator is limited to a fraction of the card, less its context."""

    def __init__(self, order: TrainingOrder) -> None:
        self._order, self._environment = order, order.environment
        self._stage = ""
        self._stages: dict[str, int] = {}
        self._allocated = self._reserved = 0
        self._rank = this_rank()

    def hold(self) -> None:
        """Refuse the allocator more than allowed_bytes less the context."""
        torch.cuda.init()
        if self._rank:
            torch.cuda.set_device(self._rank)
        if self._order.allowed_bytes is not None:
            share = (self._order.allowed_bytes - self._environment.context_bytes) / self._environment.total_memory_bytes
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, share)))
        self._stage = BUILD
        torch.cuda.reset_peak_memory_stats()

    def enter(self, stage: str) -> None:
        """Begin a stage, or with "" none: the peak so far belongs to the one before.

        The allocator counts in the program's order, so that nothing has to be waited for. What building the model took
        beyond the model itself is not part of the training's peak.
        """
        self._note()
        if self._stage == BUILD:
            torch.cuda.empty_cache()
            self._allocated = self._reserved = 0
        self._stage = stage
        torch.cuda.reset_peak_memory_stats()

    def held(self) -> int | None:
        with contextlib.suppress(RuntimeError):
            return int(torch.cuda.memory_reserved()) + self._environment.context_bytes
        return None

    def release(self) -> None:
        """The answer needs no device memory."""

    def peaks(self) -> dict[str, Any]:
        """Highest allocated, reserved and the device's own figure (with the context); allocated by stage; retries."""
        with contextlib.suppress(RuntimeError):
            self._note()
            return {
                "peak_allocated_bytes": self._allocated,
                "peak_reserved_bytes": self._reserved,
                "peak_device_bytes": self._device_bytes(),
                "stage_peak_bytes": dict(self._stages),
                "allocator_retries": int(torch.cuda.memory_stats().get("num_alloc_retries", 0)),
            }
        return {}

    def _note(self) -> None:
        allocated = int(torch.cuda.max_memory_allocated())
        self._allocated = max(self._allocated, allocated)
        self._reserved = max(self._reserved, int(torch.cuda.max_memory_reserved()))
        if self._stage:
            self._stages[self._stage] = max(self._stages.get(self._stage, 0), allocated)

    def _device_bytes(self) -> int:
        """Bytes in use on the device less those before (by NVML, which counts alike: `nvml.device_used`).

        Reserved and context if that is unknown.
        """
        summed = self._reserved + self._environment.context_bytes
        before = self._order.device_used_bytes
        if before is None or self._rank:  # it was read of the first card
            return summed
        free, total = torch.cuda.mem_get_info()
        given_back = self._reserved - int(torch.cuda.memory_reserved())
        return max(self._reserved, int(total) - int(free) - before + given_back)
