"""Local executors: the cards of this machine, or shares of a CPU's cores, each with a host of its own."""

import contextlib
import copy
import dataclasses
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.core import InvalidRequest, TuningRequest, Workload
from autotune.core.errors import DeviceInUse, ProbeHostFailed
from autotune.core.measurement import JOIN
from autotune.core.note import Note, NoteKind
from autotune.executors import Executor, ExecutorLost
from autotune.executors.compatibility import check_same_hardware, hardware_facts
from autotune.executors.pool import Pool, ThreadPool
from autotune.probe import ExitInfo, Host, Probe
from autotune.probe.device import nvml
from autotune.probe.order import Order
from autotune.probe.process.launcher import HostSet, on_cores
from autotune.probe.queries import read_environment

LOCKS = Path("/tmp")
"""Folder of the locks, a file for each card's uuid and, on a cluster, for each core that a device has. It is the system's: a
folder that the first of several users made would be theirs."""

MOST_RESTARTS = 2
"""Largest number of restarts of a host that was lost."""


class LocalHost(HostSet):
    """Hosts on some of this machine's cores; their end while they run a probe is a lost executor."""

    def __init__(self, objects: bytes = b"", cores: Collection[int] = ()) -> None:
        super().__init__(objects, frozenset(cores))
        self._lock, self._restarts = threading.RLock(), 0

    def across(self, cores: frozenset[int]) -> "LocalHost":
        """The same hosts, which run its orders on these cores."""
        other = copy.copy(self)
        other.cores = cores
        return other

    def run(self, order: Order) -> ExitInfo:
        is_probe = order.kind == "probe"
        try:
            with self._lock, on_cores(self.cores):
                info = super().run(order)
        except ProbeHostFailed as error:  # it was killed while it started
            if is_probe or self.is_abandoned:
                raise self._lost(error.message) from None
            raise
        if self.is_abandoned or (is_probe and info.ended in ("host ended", "host hung")):
            raise self._lost("the process that starts its probes was killed")
        return info

    def _lost(self, reason: str) -> ExecutorLost:
        return ExecutorLost("it was left" if self.is_abandoned else reason)

    def restart(self) -> bool:
        """True if it may be used again: it starts automatically with its next order."""
        self._restarts += 1
        return not self.is_abandoned and self._restarts <= MOST_RESTARTS

    def may_return(self) -> bool:
        """Never: what is lost for good here stays lost."""
        return False


def joined(executors: Sequence[Executor]) -> Executor:
    """The first of these local executors with the cards and the cores of all."""
    first, each = executors[0], [executor.environment for executor in executors]
    if len(executors) == 1:
        return first
    hosts = _local(executors)
    return dataclasses.replace(
        first,
        name=JOIN.join(executor.name for executor in executors),
        host=hosts[0].across(frozenset[int]().union(*(host.cores for host in hosts))),
        environment=dataclasses.replace(
            first.environment,
            cpu_count=sum(own.cpu_count for own in each),
            threads=sum(own.threads for own in each),
            device_uuids=tuple(own.device_uuid for own in each if own.device_uuid),
        ),
    )


def count_of(request: TuningRequest, card: nvml.Card | None) -> int:
    """Number of devices that a search uses; raises InvalidRequest if there are fewer."""
    most = len(nvml.visible_cards()) if card else len(os.sched_getaffinity(0)) // (request.cores_per_device or 1)
    if request.devices == "all":
        return most if card else 1
    count = int(request.devices)
    if count > max(1, most):
        what = f"{most} visible GPU{'s' * (most != 1)}" if card else f"cores for {most}"
        raise InvalidRequest(f"--devices {count}: this machine has {what}.", f"Use --devices {max(1, most)} or fewer.")
    return count


def shares(count: int, cores_per_device: int | None) -> list[list[int]]:
    """Disjoint cores of each of n devices; raises InvalidRequest if there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    each = cores_per_device or len(cores) // count
    if each < 1 or each * count > len(cores):
        raise InvalidRequest(
            f"{count} devices with {each or 1} core(s) each need {count * (each or 1)} cores, and there are {len(cores)}.",
            "Use fewer --devices or --cores-per-device.",
        )
    return [cores[index * each : (index + 1) * each] for index in range(count)]


def first_host(request: TuningRequest, card: nvml.Card | None) -> Callable[[bytes], LocalHost] | None:
    """Function that makes the host of the first of several devices; None for one device that has all cores.

    Raises InvalidRequest as `shares` does.
    """
    count = count_of(request, card)
    if count == 1 and request.cores_per_device is None:
        return None
    return partial(LocalHost, cores=shares(count, request.cores_per_device)[0])


def pool_of(executors: Sequence[Executor], probe: Callable[[Executor], Probe]) -> Pool:
    """The pool of these executors. probe: makes what measures on one."""
    named = {executor.name: executor for executor in executors}
    return (ThreadPool if len(named) > 1 else Pool)(
        {name: probe(executor) for name, executor in named.items()},
        lambda name: named[name].host.abandon(),
        lambda name: named[name].host.restart(),
        lambda name: named[name].host.may_return(),
        (lambda names: probe(joined([named[name] for name in names]))) if can_be_joined(executors) else None,
    )


def can_be_joined(executors: Sequence[Executor]) -> bool:
    """True if ranks of a training can take several of these devices."""
    return len(executors) == len(_local(executors)) > 1


def _local(executors: Sequence[Executor]) -> list[LocalHost]:
    return [executor.host for executor in executors if isinstance(executor.host, LocalHost)]


def cores_of(host: Host) -> frozenset[int]:
    """The cores that a host of this module is kept to; none of another host."""
    return host.cores if isinstance(host, LocalHost) else frozenset()


def local_executors(
    first: Host, request: TuningRequest, card: nvml.Card | None, workload: Workload, stack: contextlib.ExitStack
) -> list[Executor]:
    """An executor for each device; the first one's host is there already and runs on its share.

    None for a host that `first_host` did not make.

    Raises InvalidRequest for cards that are not alike, and if there are too few; DeviceInUse for one in use.
    """
    if not isinstance(first, LocalHost):
        return []
    split = shares(count_of(request, card), request.cores_per_device)
    cards = (
        [card, *(other for other in nvml.visible_cards() if card and other != card)] if card else [None] * len(split)
    )
    executors: list[Executor] = []
    for own, cores in zip(cards, split, strict=False):
        host = first
        if executors:
            host = stack.enter_context(LocalHost(first.objects, cores))
            host.time_limit = first.time_limit
            lock_card(own, stack)
        with on_cores(frozenset(cores)):
            environment, _ = read_environment(host, request, own)
        name = f"core{'s' * (len(cores) > 1)} {'-'.join(map(str, dict.fromkeys([cores[0], cores[-1]])))}"
        if own is None:
            free = environment.free_memory_bytes // len(split)
            environment = dataclasses.replace(environment, free_memory_bytes=free)
        else:
            name = f"cuda:{own.index}"  # the driver's number: it is the same card's whatever is visible
        facts, used = hardware_facts(own, cores), nvml.usage_of(own)
        executors.append(Executor(name, host, environment, workload, facts, used))
    check_same_hardware(executors)
    return executors


def lock_card(card: nvml.Card | None, stack: contextlib.ExitStack) -> list[Note]:
    """Hold a card for this process: notes, if it cannot be locked. A CPU needs no lock.

    Raises DeviceInUse if another search holds it.
    """
    state = True if card is None else holds(card.uuid, stack)
    if card is not None and state is False:
        raise DeviceInUse(f"Another search uses {card.name} ({card.uuid}).", "Wait for it, or name another --device.")
    return [Note(NoteKind.NOT_LOCKED, detail=str(LOCKS))] if state is None else []


def holds(name: str, stack: contextlib.ExitStack) -> bool | None:
    """True if no other process holds this lock; this process does from now on. None if nothing can be locked."""
    path = LOCKS / f"autotune-{name}.lock"
    try:
        stack.enter_context(FileLock(path, mode=0o666, blocking=False, thread_local=False, fallback_to_soft=False))
    except Timeout:
        return False
    except OSError:
        return None
    return True
