"""Executors: the devices of a search, each with a host of its own on which one order runs at a time.

    study loop (one thread)  -- start, wait -->  Pool  -- a thread each -->  Executor  -- host.run(order) -->  children

What an executor on another machine has to provide is a `ProbeHost` whose `run(order)`

- carries the order out on its own device, where its own paths, workload and environment are put in place of the order's,
- writes the files of the order's folder over there (the answers `answer*.json`, `log.txt`) into `order.folder` here,
- returns the account as the host over there gave it, or raises `ExecutorLost` and leaves no answer in the folder;

and, where it is one of several,

- `abandon()`, from any thread: nothing of it runs on the device soon after, and `run` raises `ExecutorLost`;
- `restart()`, after a loss: whether it can be used again; `may_return()`: whether that is worth another attempt later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.core import Environment, Workload
    from autotune.probe.process.launcher import ProbeHost


class ExecutorLost(Exception):
    """The executor is gone: nothing is known of what it ran, which another one may run. Its text is the reason."""


@dataclass
class Executor:
    """One device, or a share of a CPU's cores.

    name: as people read it, no other executor's (`cuda:1`, `cores 2-3`). host: of its own. likeness: facts that all executors
    of a study must share, besides those of the environment (`likeness.check_alike`). device_used: as in `LiveProbe`.
    """

    name: str
    host: "ProbeHost"
    environment: "Environment"
    workload: "Workload"
    likeness: Mapping[str, Any] = field(default_factory=dict)
    device_used: Callable[[], tuple[int, list[str]] | None] = lambda: None
