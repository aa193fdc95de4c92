"""Pool: the devices of a search as its loop sees them, each with one job at a time."""

import contextlib
import queue
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Thread
from typing import Any

from autotune.core import Configuration, Measurement, interrupt
from autotune.core.device import LeftOut, LeftOutKind
from autotune.core.errors import TimeIsOver
from autotune.core.measurement import JOIN
from autotune.executors import ExecutorLost
from autotune.probe import Probe, ProbeOptions

WAIT_S = 0.5
"""Seconds between checks for a signal that asks the command to end, while jobs run."""

LEAVE_S = 30.0
"""Seconds that abandoned jobs may take to end: a host ends its child processes within ten seconds."""

RETURN_S = 600.0
"""Seconds that a search without a device waits for a device that may return."""

Work = Callable[[Probe], Any]
"""A function that a device carries out with its probe."""


@dataclass(frozen=True)
class Ended:
    """End of a job: with a value, or because its executor was lost or its time was over."""

    key: Hashable
    device: str
    value: Any = None
    error: ExecutorLost | TimeIsOver | None = None


class Pool:
    """Jobs on devices, carried out one after the other by `wait`, in this thread: of one device.

    probes: name of the device -> its probe. left_out: those that run nothing more, and why. abandon: (device) ends what runs
    there; restart: (device) whether it can be used again after a loss; may_return: (device) whether later, if not at once;
    together: (devices) the probe of a training whose ranks take these.
    """

    def __init__(
        self,
        probes: Mapping[str, Probe],
        abandon: Callable[[str], None] = lambda device: None,
        restart: Callable[[str], bool] = lambda device: False,
        may_return: Callable[[str], bool] = lambda device: False,
        together: Callable[[Sequence[str]], Probe] | None = None,
    ) -> None:
        self.probes = {name: _named(name, probe) for name, probe in probes.items()} if len(probes) > 1 else dict(probes)
        self.left_out: dict[str, LeftOut] = {}
        self._abandon, self._restart, self._may_return, self._together = abandon, restart, may_return, together
        self._running: dict[str, Hashable] = {}
        self._jobs: list[tuple[str, Work, Probe]] = []
        self._lost: list[str] = []

    @property
    def is_several(self) -> bool:
        """True if there was more than one device to begin with."""
        return len(self.probes) > 1

    @property
    def devices(self) -> list[str]:
        """Names of the devices that can be used."""
        return [name for name in self.probes if name not in self.left_out]

    @property
    def idle(self) -> list[str]:
        """Names of those on which nothing runs."""
        return [name for name in self.devices if name not in self._running]

    @property
    def is_running(self) -> bool:
        """True if anything runs."""
        return bool(self._running)

    @property
    def running(self) -> str:
        """Text for people: how many devices still measure; empty if none does."""
        count = len(self._running)
        return f"{count} devices still measure" if count > 1 else "1 device still measures" * count

    def without(self, names: Sequence[str], avoided: str) -> list[str]:
        """These devices without the avoided one, which is used only if no other can be."""
        return [name for name in names if name != avoided or self.devices == [avoided]]

    def devices_needed(self, configuration: Configuration) -> int:
        """Number of devices that a training takes: one, or if devices can be joined one for each of its ranks."""
        return 1 if self._together is None else configuration.data_parallel_size

    def start(self, key: Hashable, work: Work, device: str, *others: str) -> None:
        """Let an idle device begin with a job; `wait` returns its end under this key. others: what its ranks take besides."""
        assert {device, *others} <= {*self.idle}, (device, others)
        self._running |= dict.fromkeys((device, *others), key)
        probe, names = self.probes[device], (device, *others)
        if others:
            assert self._together is not None
            probe = _named(JOIN.join(names), self._together(names))
        self._begin(device, work, probe)

    def wait(self) -> Ended:
        """The end of the job that ends next; raises what a job raises, but for a lost executor and a time that is over."""
        assert self._running, "nothing runs that could end"
        device, value, error = self._next()
        key = self._ended(device)
        if isinstance(error, ExecutorLost) and not self._restart(device):
            self.left_out[device] = LeftOut(LeftOutKind.LOST, detail=str(error))
            self._lost.append(device)
        if error is None or isinstance(error, (ExecutorLost, TimeIsOver)):
            return Ended(key, device, value, error)
        raise error

    def wait_for_device(self, seconds: float, waiting: Callable[[], None], check: Callable[[], None]) -> bool:
        """True if a device that was lost is there again within these seconds; nothing may run.

        waiting: called before the wait; check: called repeatedly during it, ends it if it raises.
        """
        until, is_announced = time.monotonic() + seconds, False
        while time.monotonic() < until and (able := [*filter(self._may_return, self._lost)]):
            if not is_announced:
                waiting()
                is_announced = True
            for device in able:
                if self._restart(device):
                    self._lost.remove(device)
                    del self.left_out[device]
                    return True
            check()
            time.sleep(WAIT_S)
        return False

    def abandon(self) -> None:
        """End all jobs that run; nothing is known of what they came to."""
        self._running.clear()
        self._jobs.clear()

    def _ended(self, device: str) -> Hashable:
        """The key of the job that ended on a device; all that it took are idle."""
        key = self._running[device]
        self._running = {name: other for name, other in self._running.items() if other != key}
        return key

    def _begin(self, device: str, work: Work, probe: Probe) -> None:
        self._jobs.append((device, work, probe))

    def _next(self) -> tuple[str, Any, BaseException | None]:
        device, work, probe = self._jobs.pop(0)
        return device, *carried_out(work, probe)


class ThreadPool(Pool):
    """Jobs on several devices at once, each in a thread; nothing but jobs runs in these."""

    @cached_property
    def _ends(self) -> queue.SimpleQueue[tuple[str, Any, BaseException | None]]:
        return queue.SimpleQueue()

    def _begin(self, device: str, work: Work, probe: Probe) -> None:
        ends = self._ends
        Thread(
            target=lambda: ends.put((device, *carried_out(work, probe))), name=f"executor {device}", daemon=True
        ).start()

    def _next(self) -> tuple[str, Any, BaseException | None]:
        while True:
            interrupt.check()
            with contextlib.suppress(queue.Empty):
                return self._ends.get(timeout=WAIT_S)

    def abandon(self) -> None:
        until = time.monotonic() + LEAVE_S
        for device in self._running:
            self._abandon(device)
        with contextlib.suppress(queue.Empty):
            while self._running and (left := until - time.monotonic()) > 0:
                device, *_ = self._ends.get(timeout=left)
                self._ended(device)
        super().abandon()


def carried_out(work: Work, probe: Probe) -> tuple[Any, BaseException | None]:
    """(What the work returned, None) or (None, what it raised)."""
    try:
        return work(probe), None
    except BaseException as error:
        return None, error


def as_pool(probe: Probe | Pool) -> Pool:
    """A pool of one device without a name, unless it is a pool already."""
    return probe if isinstance(probe, Pool) else Pool({"": probe})


def _named(device: str, probe: Probe) -> Probe:
    """The probe, with its device's name in each measurement."""

    def measured(configuration: Configuration, options: ProbeOptions) -> Measurement:
        return replace(probe(configuration, options), device=device)

    return measured
