"""Devices of a Ray cluster that the service lends: each GPU with its share of the cores, or the cores of each node.

autotune serve <── lines, every 2 s ── python -m autotune.executors.ray (a process: Ray ends it with the cluster)
      └─ search's process, on this machine ──Ray──> actors on the nodes that were lent
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core import InvalidRequest
from autotune.core.errors import DevicesAway
from autotune.service.devices import JOIN

FIRST_S, STALE_S, RETRY_S = 60.0, 15.0, 3.0
"""Seconds in which the cluster must answer at the start; after which what it said does not count; until it is asked again."""

READ_S = 10.0
"""Seconds in which the nodes must say if they can read a path."""

GONE_S = 3600.0
"""Seconds for which the devices of a node that is gone can be waited for."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster as Ray reports it: cores and GPUs, in all and free; card: of its GPUs."""

    id: str
    name: str
    card: str
    cpus: int
    gpus: int
    free_cpus: int
    free_gpus: int

    @property
    def cores(self) -> int:
        """Cores of each of its devices."""
        return max(1, self.cpus // max(1, self.gpus))

    @property
    def free(self) -> int:
        """Number of its devices that nobody uses, as Ray has it."""
        return min(self.free_cpus // self.cores, self.free_gpus if self.gpus else 1)


def devices_of(nodes: Iterable[Node], kinds: Sequence[str]) -> dict[str, Node]:
    """Name of each device -> its node. kinds: cuda (each GPU) and cpu (all cores of a node without one)."""
    nodes = sorted(nodes, key=lambda node: (node.name, node.id))
    names = [node.name for node in nodes]
    devices: dict[str, Node] = {}
    for node in nodes:
        host = node.name if names.count(node.name) == 1 else f"{node.name}-{node.id[:6]}"
        if node.gpus and "cuda" in kinds:
            devices |= {f"cuda:{index}@{host}": node for index in range(node.gpus)}
        elif node.cpus and not node.gpus and "cpu" in kinds:
            devices[f"cpu@{host}"] = node
    return devices


class ClusterDevices:
    """The devices of the Ray cluster at this address, by default RAY_ADDRESS, that come and go. kinds: as of `devices_of`.

    on_change: called, in another thread, once other devices are there or free. Raises InvalidRequest for other kinds, and if the
    cluster does not answer and is_awaited.
    """

    is_lasting = False

    def __init__(
        self, address: str, kinds: Sequence[str], allow_unauthenticated: bool = False, is_awaited: bool = True
    ) -> None:
        if wrong := [kind for kind in kinds if kind not in ("cuda", "cpu")]:
            raise InvalidRequest(f"{wrong[0]!r} is not a kind of device of a cluster.", "Use cuda, cpu, or both.")
        self._address, self._kinds = address or os.environ.get("RAY_ADDRESS", ""), kinds
        self._allow_unauthenticated = allow_unauthenticated
        self.on_change: Callable[[], None] = lambda: None
        self._devices: dict[str, Node] = {}
        self._cards: dict[str, str] = {}
        self._seen: dict[str, float] = {}  # name -> when it was there last
        self._reported_at, self._error = float("-inf"), ("It does not answer.", "")
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: dict[str, list[str]] = {}  # path -> ids of the nodes that can read it
        self._reported, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cluster", daemon=True)
        self._thread.start()
        if is_awaited and (not self._reported.wait(FIRST_S) or self._reported_at < 0):
            self.close()
            raise InvalidRequest(*self._error)

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        """Take the reports of a process; start another one if it ends or is silent."""
        command = (sys.executable, "-m", "autotune.executors.ray", self._address)
        while not self._closed.is_set():
            self._process = process = subprocess.Popen(
                [*command, *["--allow-unauthenticated"] * self._allow_unauthenticated],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            assert process.stdout is not None
            rest, heard_at = b"", time.monotonic()
            while not self._closed.is_set() and time.monotonic() < heard_at + FIRST_S:
                if not select.select([process.stdout], [], [], 0.2)[0]:
                    continue
                if not (chunk := os.read(process.stdout.fileno(), 2**20)):
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError):  # a line of Ray's own
                        self._take(json.loads(line))
                heard_at = time.monotonic()
            process.kill()
            process.communicate()
            self._closed.wait(RETRY_S)

    def _take(self, report: Mapping[str, Any]) -> None:
        if "error" in report:
            self._error = report["error"]
        elif "readers" in report:
            self._readers[report["path"]] = report["readers"]
        else:
            now, before = time.monotonic(), {name: node.free for name, node in self._devices.items()}
            self._reported_at = now
            self._devices = devices_of([Node(**node) for node in report["nodes"]], self._kinds)
            cards = {name: _card(node) for name, node in self._devices.items()}
            self._seen = {name: at for name, at in self._seen.items() if at > now - GONE_S} | dict.fromkeys(cards, now)
            self._cards = {name: card for name, card in self._cards.items() if name in self._seen} | cards
            if before != {name: node.free for name, node in self._devices.items()}:
                self.on_change()
        self._reported.set()

    @property
    def cards(self) -> dict[str, str]:
        """Device -> card, of those too whose nodes are gone and may come again."""
        return dict(self._cards)

    def known_cards(self) -> dict[str, str]:
        """`cards`, once the cluster has answered a server that has just taken the database; raises DevicesAway if it does not."""
        if not self._reported.wait(READ_S) or self._reported_at < 0:
            raise DevicesAway(f"The Ray cluster at {self._address} has not answered yet.", "Try again later.")
        return self.cards

    @property
    def names(self) -> tuple[str, ...]:
        """The devices that are there."""
        return tuple(self._devices)

    def free(self, lent: Iterable[str | None]) -> list[str]:
        """Names of the devices that are not among these and that nobody else uses, as Ray has it; none while it is silent."""
        if self.problem():
            return []
        away = {name for names in lent if names for name in names.split(JOIN)}
        devices, free = self._devices, []
        for node in dict.fromkeys(devices.values()):
            free += [name for name, own in devices.items() if own == node and name not in away][: node.free]
        return free

    def problem(self) -> str:
        """Reason why nothing can be lent; empty if there is none."""
        if time.monotonic() > self._reported_at + STALE_S:
            return f"the Ray cluster at {self._address} does not answer"
        return "" if self._devices else "none"

    def unreadable(self, path: str) -> list[str]:
        """Names of the nodes with devices that cannot read this file or folder, or do not say that they can."""
        self._readers.pop(path, None)
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the process has ended
                self._process.stdin.write(f"{json.dumps(path)}\n".encode())
                self._process.stdin.flush()
        until = time.monotonic() + READ_S
        while (readers := self._readers.get(path)) is None and time.monotonic() < until:
            time.sleep(0.05)
        nodes = {node.id: node.name for node in self._devices.values()}
        return [name for node, name in nodes.items() if node not in (readers or ())]

    def options(self, lent: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a search for these devices: each gets its share of its node's cores, or fewer if the search wants that."""
        names = lent.split(JOIN)
        share = min((self._devices[name].cores for name in names if name in self._devices), default=1)
        kind = "cpu" if lent.startswith("cpu") else "cuda"
        cores = min(share, wanted.get("cores_per_device") or share)
        options = {"device": kind, "devices": len(names), "cores_per_device": cores, "executor": "ray"}
        return options | {"allow_unauthenticated": self._allow_unauthenticated}

    def variables(self, lent: str) -> dict[str, str]:
        """Variables of a search's process: the cluster, how to enter it, and the node of each of its devices."""
        nodes = [self._devices[name].id for name in lent.split(JOIN) if name in self._devices]
        secrets = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH_")}
        return {"RAY_ADDRESS": self._address, "AUTOTUNE_NODES": JOIN.join(nodes)} | secrets

    def cores(self, _lent: str) -> list[int]:
        """The cores of a search's process, which measures nothing itself."""
        return sorted(os.sched_getaffinity(0))


def _card(node: Node) -> str:
    return node.card if node.gpus else f"CPU, {node.cpus} cores"
