"""Local executors: the cards of this machine, or shares of a CPU's cores, each with a host of its own."""

import contextlib
import dataclasses
import fcntl
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from autotune.core import InvalidRequest, TuningRequest, Workload
from autotune.core.errors import SearchFailed
from autotune.executors import Executor, ExecutorLost
from autotune.executors.likeness import check_alike, likeness
from autotune.executors.pool import JOIN, Pool, ThreadPool
from autotune.probe import Probe
from autotune.probe.device import nvml
from autotune.probe.order import Order
from autotune.probe.process.answers import Account
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.queries import read_environment

LOCKS = Path("/tmp/autotune-cards")
"""Folder of the locks of cards, a file for each card's uuid."""

MOST_RESTARTS = 2
"""How often a host that was lost is started again."""


class LocalHost(ProbeHost):
    """A host on some of this machine's cores; its end while it runs an order is a lost executor."""

    def __init__(self, objects: bytes = b"", cores: Sequence[int] = ()) -> None:
        super().__init__(objects)
        self.cores, self._lock, self._abandoned, self._restarts = frozenset(cores), threading.RLock(), False, 0

    def __enter__(self) -> "LocalHost":
        super().__enter__()
        return self

    def launch(self) -> None:
        with on_cores(self.cores):
            super().launch()

    def run(self, order: Order) -> Account:
        with self._lock, on_cores(self.cores):
            account = super().run(order) if not self._abandoned else {"ended": "host ended", "code": None}
        if self._abandoned:
            raise ExecutorLost("it was left")
        if order.kind == "probe" and account["ended"] in ("host ended", "host hung"):
            raise ExecutorLost("the process that starts its probes was killed")
        return account

    @contextlib.contextmanager
    def widened(self, cores: frozenset[int]) -> Iterator[None]:
        """Within, its children run on these cores."""
        own = self.cores
        if self.pid is None:
            self.start()
        try:
            self._move(cores)
            yield
        finally:
            self._move(own)

    def _move(self, cores: frozenset[int]) -> None:
        self.cores = cores
        for host in (self, *self._others.values()):
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(host.pid or -1, cores)

    def abandon(self) -> None:
        """End what runs, from any thread."""
        self._abandoned = True
        for host in (self, *self._others.values()):
            if (channel := host._channel) is not None:
                with contextlib.suppress(OSError):
                    channel.shutdown(socket.SHUT_RDWR)  # its supervisor ends all that is below it

    def restart(self) -> bool:
        """Whether it may be used again: it starts by itself with its next order."""
        self._restarts += 1
        return not self._abandoned and self._restarts <= MOST_RESTARTS


class JoinedHost(ProbeHost):
    """A device's host for trainings whose ranks take other devices too: it runs on the cores of all."""

    def __init__(self, host: LocalHost, cores: frozenset[int]) -> None:
        self._host, self._cores = host, cores

    def run(self, order: Order) -> Account:
        with self._host.widened(self._cores):
            return self._host.run(order)


def joined(executors: Sequence[Executor]) -> Executor:
    """The first of these local executors with the cards and the cores of all."""
    first, hosts = executors[0], [executor.host for executor in executors if isinstance(executor.host, LocalHost)]
    if len(executors) == 1:
        return first
    each = [executor.environment for executor in executors]
    environment = dataclasses.replace(
        first.environment,
        cpu_count=sum(own.cpu_count for own in each),
        threads=sum(own.threads for own in each),
        device_uuids=tuple(own.device_uuid for own in each if own.device_uuid),
    )
    host = JoinedHost(hosts[0], frozenset(core for host in hosts for core in host.cores))
    name = JOIN.join(executor.name for executor in executors)
    return dataclasses.replace(first, name=name, host=host, environment=environment)


@contextlib.contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Within, this thread and what it starts run on these cores; all of its own where there are none."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def count_of(request: TuningRequest, card: nvml.Card | None) -> int:
    """How many devices a search uses; raises InvalidRequest where there are fewer."""
    most = len(nvml.visible_cards()) if card else len(os.sched_getaffinity(0)) // (request.cores_per_device or 1)
    if request.devices == "all":
        return most if card else 1
    count = int(request.devices)
    if count > max(1, most):
        what = f"{most} visible card(s)" if card else f"cores for {most}"
        raise InvalidRequest(f"--devices {count} is more than there are: {what}.", f"Use --devices {max(1, most)}.")
    return count


def shares(count: int, cores_per_device: int | None) -> list[list[int]]:
    """Disjoint cores of each of so many devices; raises InvalidRequest where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = cores_per_device or len(cores) // count
    if each < 1 or each * count > len(cores):
        raise InvalidRequest(
            f"{count} devices with {each or 1} core(s) each need {count * (each or 1)} cores, and there are {len(cores)}.",
            "Use fewer --devices or --cores-per-device.",
        )
    return [cores[index * each : (index + 1) * each] for index in range(count)]


def first_host(request: TuningRequest, card: nvml.Card | None) -> Callable[[bytes], ProbeHost] | None:
    """What makes the host of the first of several devices; None for one device that has all cores.

    Raises InvalidRequest as `shares` does.
    """
    count = count_of(request, card)
    if count == 1 and request.cores_per_device is None:
        return None
    return partial(LocalHost, cores=shares(count, request.cores_per_device)[0])


def pool_of(executors: Sequence[Executor], probe: Callable[[Executor], Probe]) -> Pool:
    """The pool of these executors. probe: makes what measures on one."""
    named = {executor.name: executor for executor in executors}
    if len(named) == 1:
        return Pool({name: probe(executor) for name, executor in named.items()})
    are_local = all(isinstance(executor.host, LocalHost) for executor in executors)
    return ThreadPool(
        {name: probe(executor) for name, executor in named.items()},
        lambda name: named[name].abandon(),
        lambda name: named[name].restart(),
        lambda name: named[name].may_return(),
        (lambda names: probe(joined([named[name] for name in names]))) if are_local else None,
    )


def local_executors(
    first: ProbeHost, request: TuningRequest, card: nvml.Card | None, workload: Workload, stack: contextlib.ExitStack
) -> list[Executor]:
    """An executor for each device; the first one's host is there already and runs on its share.

    Raises InvalidRequest for cards that are not alike, and where there are too few.
    """
    assert isinstance(first, LocalHost)
    cards = [card, *(other for other in nvml.visible_cards() if other != card)] if card else [None] * 10**4
    split = shares(count_of(request, card), request.cores_per_device)
    executors: list[Executor] = []
    for index, (own, cores) in enumerate(zip(cards, split, strict=False)):
        host: LocalHost = first
        if index:
            host = stack.enter_context(LocalHost(first._objects, cores))
            host.time_limit = first.time_limit
        with on_cores(frozenset(cores)):
            environment, _ = read_environment(host, request, own)
        if own is None:
            free = environment.free_memory_bytes // len(split)
            environment = dataclasses.replace(environment, free_memory_bytes=free)
        name = f"cuda:{nvml.visible_cards().index(own)}" if own else _cores_name(cores)
        if own is not None and index:
            lock_card(own, stack)
        executors.append(
            Executor(
                name,
                host,
                environment,
                workload,
                likeness(own, cores),
                nvml.usage_of(own),
                host.abandon,
                host.restart,
            )
        )
    check_alike({each.name: facts_of(each) for each in executors})
    return executors


def _cores_name(cores: Sequence[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {cores[0]}-{cores[-1]}"


def facts_of(executor: Executor) -> Mapping[str, object]:
    """All that executors of one study share."""
    return {**executor.environment.identity(), **executor.likeness}


def lock_card(card: nvml.Card | None, stack: contextlib.ExitStack) -> None:
    """Hold a card for this process; raises SearchFailed where another search holds it. A CPU needs no lock."""
    if card is None:
        return
    with contextlib.suppress(OSError):
        LOCKS.mkdir(exist_ok=True)
        LOCKS.chmod(0o1777)
    try:
        handle = os.open(LOCKS / card.uuid, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return  # where nothing can be locked, nothing is
    stack.callback(os.close, handle)
    with contextlib.suppress(OSError):
        os.fchmod(handle, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SearchFailed(
            f"Another search uses {card.name} ({card.uuid}).", "Wait for it, or name another --device."
        ) from error
