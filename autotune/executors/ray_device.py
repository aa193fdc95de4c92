"""Device: the actor of one device on a Ray cluster, with a probe host of its own.

It knows nothing of Ray. Where its process dies, however it does, its host's socket closes, and the host's supervisor ends and
removes all below.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from autotune.core import AutotuneError, Environment, TuningRequest, Workload
from autotune.core.io import file_end
from autotune.core.paths import cache_folder
from autotune.core.version import __version__
from autotune.executors.compatibility import hardware_facts
from autotune.executors.local import holds, lock_card
from autotune.probe.device import nvml
from autotune.probe.order import LOG, Order
from autotune.probe.process.launcher import HostSet
from autotune.probe.queries import read_environment, read_workload

LEASE_S = 60.0
"""Seconds without a ping after which it leaves: its search cannot reach it any more."""

LOG_BYTES = 1 << 20
"""The end of a log that travels."""


class DeviceActor:
    """The actor of one device. It leaves, and all below it, if no ping came for LEASE_S.

    cores: how many it takes for itself. lease_s: shorter in tests.
    """

    def __init__(self, objects: bytes, cores: int, device: str, lease_s: float = LEASE_S) -> None:
        self._locks = contextlib.ExitStack()
        self._card = nvml.choose_device(device)
        lock_card(self._card, self._locks)
        self._cores = _claimed(cores, self._locks)
        for thread in os.listdir("/proc/self/task"):  # Ray's own threads too
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), self._cores)
        self._host, self._runs = HostSet(objects), threading.Lock()
        self._environment: Environment | None = None
        self._workload: Workload | None = None
        self._pinged, self._lease_s = time.monotonic(), lease_s
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() - self._pinged < self._lease_s:
            time.sleep(min(1.0, self._lease_s / 10))
        os._exit(1)

    def ping(self) -> None:
        """Renew the lease."""
        self._pinged = time.monotonic()

    def facts(self) -> dict[str, Any]:
        """Name, process id, whether its cluster has authentication, and what all devices of a search must share."""
        place = self._card.uuid if self._card else f"cores {','.join(map(str, self._cores))}"
        own = {"threads": os.environ.get("OMP_NUM_THREADS"), "autotune": __version__}
        return {
            "name": f"{socket.gethostname()} {place}",
            "pid": os.getpid(),
            "has_authentication": os.environ.get("RAY_AUTH_MODE") == "token",
            "hardware": hardware_facts(self._card, self._cores) | own,
        }

    def read(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """(Facts of the device, model and data) as they are on this machine, or the error of reading them."""
        own = TuningRequest.from_dict(request)
        with _errors() as answer:
            self._environment, self._card = read_environment(self._host, own, self._card)
            self._workload = read_workload(self._host, own)
            answer["value"] = self._environment.to_dict(), self._workload.to_dict()
        return answer

    def used(self) -> tuple[int, list[str]] | None:
        """`nvml.device_used` of its card."""
        return nvml.device_used(self._card) if self._card else None

    def run(self, number: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Carry an order out: its number, how it ended and the files that it left, or the error of starting it."""
        with _errors() as answer:
            folder = self._host.scratch_folder()
            try:
                order = self._own(Order.from_dict(data, folder))
                with self._runs:  # the search may ask for an estimate while a probe runs
                    answer["value"] = self._host.run(order)
                answers = {path.name: path.read_bytes() for path in folder.glob("answer*.json")}
                answer["files"] = answers | {LOG: file_end(folder / LOG, LOG_BYTES) if (folder / LOG).exists() else b""}
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return {**answer, "number": number}

    def _own(self, order: Order) -> Order:
        """The order with this machine's environment, data and cache."""
        request = {**order.request, **({"cache": str(cache_folder())} if "cache" in order.request else {})}
        return replace(
            order,
            request=request,
            environment=order.environment and (self._environment or order.environment),
            workload=order.workload and (self._workload or order.workload),
        )

    def close(self) -> None:
        """End the host and all below it."""
        self._host.close()


@contextlib.contextmanager
def _errors() -> Iterator[dict[str, Any]]:
    """An answer; an error of autotune within becomes a part of it."""
    answer: dict[str, Any] = {}
    try:
        yield answer
    except AutotuneError as error:
        answer |= {"error": type(error).__name__, "message": error.message, "advice": error.advice}


def _claimed(count: int, locks: contextlib.ExitStack) -> list[int]:
    """`count` cores that no other device on this machine has; raises RuntimeError if there are fewer."""
    own: list[int] = []
    for core in sorted(os.sched_getaffinity(0)):
        if len(own) < count and holds(f"core-{core}", locks) is not False:
            own.append(core)
    if len(own) < count:
        raise RuntimeError(f"{len(own)} of {count} core(s) are free on {socket.gethostname()}")
    return own
