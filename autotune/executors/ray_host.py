"""The host of an executor on a Ray cluster, as the search sees it: its actor is asked, pinged, and replaced if it is lost."""

import contextlib
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.core import AutotuneError, Environment, InvalidRequest, TuningRequest, Workload, interrupt
from autotune.core.errors import ProbeHostFailed
from autotune.core.time_limit import TimeLimit
from autotune.core.version import __version__
from autotune.executors import ExecutorLost
from autotune.executors.ray_device import LEASE_S, DeviceActor
from autotune.probe import ExitInfo
from autotune.probe.order import Order
from autotune.probe.process.answers import value_of
from autotune.probe.process.launcher import GRACE_S, REPEATS, START_S, write_order
from autotune.probe.queries import READING_S

PING_S, LOST_S = 5.0, 30.0
"""Seconds between pings, and without an answer after which an executor counts as lost."""

DEVICES_S, RESTART_S = 60.0, 15.0
"""Seconds within which all devices must be there at the start, and within which a lost one is replaced."""

VARIABLES = {
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_process_group_cleanup_enabled": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables of an actor. The first two: ended by Ray, the host's supervisor could remove nothing."""


class OutOfMemory(ExecutorLost):
    """Ray's memory monitor ended the executor."""


@dataclass
class Cluster:
    """A Ray cluster that this process is a driver of.

    killed: order -> how often Ray's memory monitor ended the executor that ran it.
    """

    ray: Any
    address: str
    allow_unauthenticated: bool = False
    lease_s: float = LEASE_S
    killed: Counter[str] = field(default_factory=Counter)

    def is_there(self) -> bool:
        """True if the cluster's head answers."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=PING_S).close()
        except (OSError, ValueError, OverflowError):  # the last two: of what is not a port
            return False
        return True


class RayHost:
    """The host of an executor on the cluster; `run` raises ExecutorLost if it is gone. node: id of one that is tried first."""

    uses_cache = False  # here are none of the device's answers: it has a cache of its own

    def __init__(self, cluster: Cluster, objects: bytes, device: str, cores: int, node: str = "") -> None:
        self.time_limit = TimeLimit()
        self._cluster, self._objects, self._device, self._cores = cluster, objects, device, cores
        self._node = node
        self._actor: Any = None
        self._reason, self._left = "", threading.Event()
        self._folder = contextlib.ExitStack()
        self.facts: Mapping[str, Any] = {}
        self._request: TuningRequest | None = None
        self._identity: Mapping[str, Any] = {}
        self._wanted: Any = None  # facts of the first actor, which those that take its place must share

    def background_host(self) -> None:
        """No background host: it would be on this machine, where model and data have other paths."""

    def launch(self) -> None:
        """Ask the cluster for the actor, without waiting for it."""
        niceness = str(os.getpriority(os.PRIO_PROCESS, 0))
        variables = {**VARIABLES, "RAY_worker_niceness": niceness, "OMP_NUM_THREADS": str(self._cores)}
        device = "cpu" if self._device == "cpu" else "cuda"  # Ray shows an actor only the card that it gives it
        options = {"num_cpus": self._cores, "num_gpus": int(device == "cuda"), "runtime_env": {"env_vars": variables}}
        if self._node:
            strategies = self._cluster.ray.util.scheduling_strategies
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(self._node, soft=True)
        # At once: an order, a ping, a question and `close`.
        actor = self._cluster.ray.remote(max_concurrency=4, **options)(DeviceActor)
        self._actor = actor.remote(self._objects, self._cores, device, self._cluster.lease_s)
        self._reason, self._left = "", threading.Event()

    def start(self, seconds: float = DEVICES_S) -> None:
        """Wait until the executor is there and as it must be; raises ExecutorLost, or InvalidRequest if it is not."""
        if self._actor is None:
            self.launch()
        self.facts = self._ask("facts", seconds=seconds)
        if not self.facts["has_authentication"] and not self._cluster.allow_unauthenticated:
            self.close()
            raise InvalidRequest(
                "Whoever reaches this Ray cluster can run programs on it: it has no authentication.",
                "Start it with RAY_AUTH_MODE=token, or accept that with --allow-unauthenticated.",
            )
        wanted = {"niceness": os.getpriority(os.PRIO_PROCESS, 0), "threads": str(self._cores), "autotune": __version__}
        own = self.facts["hardware"]
        if differs := [f"{name} {own[name]}, not {value}" for name, value in wanted.items() if own[name] != value]:
            self.close()
            what = f"{self.facts['name']} cannot be used: {', '.join(differs)}."
            raise InvalidRequest(what, "See its node's settings.")
        threading.Thread(target=self._keep, args=(self._actor, self._left), name="lease", daemon=True).start()

    def _keep(self, actor: Any, left: threading.Event) -> None:
        """Ping the actor until it is left or does not answer."""
        ray, answered, there = self._cluster.ray, time.monotonic(), time.monotonic()
        while not left.wait(min(PING_S, self._cluster.lease_s / 4)):
            with contextlib.suppress(Exception):  # any error of Ray is not an answer
                ray.get(actor.ping.remote(), timeout=PING_S)
                answered = time.monotonic()
            there = time.monotonic() if self._cluster.is_there() else there
            for since, reason in ((answered, "it does not answer"), (there, "the cluster was lost")):
                if time.monotonic() - since > LOST_S:
                    self._reason = reason
                    return

    def run(self, order: Order) -> ExitInfo:
        """Have an order carried out: how it ended.

        Where the executor is gone it raises ExecutorLost for a probe, which another one may run, else ProbeHostFailed.
        """
        begun = time.monotonic()
        try:
            return self._carry_out(order)
        except OutOfMemory as error:
            lost: ExecutorLost = error
            key = str((order.kind, order.configuration))
            self._cluster.killed[key] += 1
            if self._cluster.killed[key] > 1 and self.restart():
                return ExitInfo("host ended", time.monotonic() - begun, [-signal.SIGKILL], kernel_oom_kills=1)
        except ExecutorLost as error:
            lost = error
        if order.kind == "probe":
            raise lost
        raise ProbeHostFailed(f"A device of the cluster was lost: {lost}.", "Run the same command again to resume.")

    def _carry_out(self, order: Order) -> ExitInfo:
        interrupt.check()
        if self._reason:
            raise ExecutorLost(self._reason)
        if self._actor is None:
            self.start()
        order = replace(order, deadline_s=self.time_limit.cut(order.deadline_s))
        write_order(order)
        number, seconds = secrets.token_hex(8), START_S + (REPEATS + 1) * (order.deadline_s + GRACE_S)
        reply = self._ask("run", number, order.to_dict(), seconds=seconds)
        if reply["number"] != number:
            raise ExecutorLost("it answered another order")
        info: ExitInfo = value_of(reply)
        for name, content in reply["files"].items():
            (Path(order.folder) / Path(name).name).write_bytes(content)
        return info

    def read(self, request: TuningRequest) -> tuple[Environment, Workload]:
        """Facts of its device, model and data as its machine has them; raises as `read_environment` and `read_workload` do."""
        environment, workload = value_of(self._ask("read", request.to_dict(), seconds=READING_S + 2 * START_S))
        self._request, self._identity = request, Environment.from_dict(environment).identity()
        self._wanted = self._wanted or self._facts()
        return Environment.from_dict(environment), Workload.from_dict(workload)

    def _facts(self) -> Any:
        return self._identity, self.facts["hardware"]

    def used(self) -> tuple[int, list[str]] | None:
        """Bytes in use on its card and by whom."""
        used: tuple[int, list[str]] | None = self._ask("used", seconds=LOST_S)
        return used

    def _ask(self, question: str, *values: Any, seconds: float) -> Any:
        """The actor's reply; raises ExecutorLost, which is OutOfMemory if Ray's memory monitor ended it."""
        ray, actor, until = self._cluster.ray, self._actor, time.monotonic() + seconds
        if actor is None:
            raise ExecutorLost(self._reason or "it was left")
        reference = getattr(actor, question).remote(*values)
        try:
            while not ray.wait([reference], timeout=1.0)[0]:
                interrupt.check()
                if self._reason or time.monotonic() > until:
                    raise ExecutorLost(self._reason or f"no answer within {seconds:.0f} s")
            return ray.get(reference)
        except ray.exceptions.OutOfMemoryError:
            self._end()
            raise OutOfMemory("Ray ended it: its machine was out of memory") from None
        except ray.exceptions.RayError as error:
            self._end()
            raise ExecutorLost(_reason(error)) from None
        except BaseException:
            self._end()
            raise

    def abandon(self) -> None:
        """End what runs there; from any thread."""
        self._reason = self._reason or "it was abandoned"
        self._end()

    def restart(self) -> bool:
        """Replace it by another executor of the same facts; True if that succeeded in time."""
        self._end()
        with contextlib.suppress(ExecutorLost, AutotuneError):
            if self._cluster.is_there():
                self.start(RESTART_S)
                if self._request is None:
                    return True
                self.read(self._request)  # it may be on another machine, with files in other places
                if self._facts() == self._wanted:
                    return True
                self._reason = "what took its place is not alike"
        self._end()
        return False

    def may_return(self) -> bool:
        """True if the cluster may have a device again."""
        return self._cluster.is_there()

    def scratch_folder(self) -> Path:
        """A new folder here, gone once the host is closed."""
        return Path(self._folder.enter_context(tempfile.TemporaryDirectory(prefix="ask-")))

    def close(self) -> None:
        """End the executor and remove what it kept here."""
        if self._actor is not None and not self._reason:
            with contextlib.suppress(Exception):  # whatever Ray raises: it is killed now
                self._cluster.ray.get(self._actor.close.remote(), timeout=GRACE_S)
        self._end()
        self._folder.close()

    def _end(self) -> None:
        """Kill the actor's process."""
        actor, self._actor = self._actor, None
        self._left.set()
        if actor is not None:
            with contextlib.suppress(Exception):  # it is gone, or the cluster is
                self._cluster.ray.kill(actor)


def _reason(error: Exception) -> str:
    """Reason why an executor is lost, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Its last line tells at length what may have been.
    return f"{type(error).__name__}: {lines[-1].partition('. ')[0] if lines else 'no reason given'}"
