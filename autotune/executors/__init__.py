"""Executors: the devices of a search, each with a host of its own on which one order runs at a time.

    study loop (one thread)  -- start, wait -->  Pool  -- a thread each -->  Executor  -- host.run(order) -->  children

What an executor on another machine has to provide is an `ExecutorHost` whose `run(order)`

- carries the order out on its own device, where its own paths, workload and environment are put in place of the order's,
- writes the files of the order's folder over there (the answers `answer*.json`, `log.txt`) into `order.folder` here,
- returns the `ExitInfo` as the host over there gave it, or raises `ExecutorLost` and leaves no answer in the folder.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from autotune.probe import Host

if TYPE_CHECKING:
    from autotune.core import Environment, Workload


class ExecutorLost(Exception):
    """The executor is gone: nothing is known of what it ran, which another one may run. Its text is the reason."""


class ExecutorHost(Host, Protocol):
    """A host that may be lost or abandoned: `run` raises ExecutorLost then."""

    def restart(self) -> bool:
        """True if it can be used again after a loss."""
        ...

    def may_return(self) -> bool:
        """True if another restart is worth an attempt later."""
        ...


@dataclass
class Executor:
    """One device, or a share of a CPU's cores.

    name: as people read it, no other executor's (`cuda:1`, `cores 2-3`). host: of its own. hardware: facts that all executors
    of a study must share, besides those of the environment (`compatibility.check_same_hardware`). device_used: as in `LiveProbe`.
    """

    name: str
    host: ExecutorHost
    environment: "Environment"
    workload: "Workload"
    hardware: Mapping[str, Any] = field(default_factory=dict)
    device_used: Callable[[], tuple[int, list[str]] | None] = lambda: None
