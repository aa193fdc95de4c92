"""Local executors: the cards of this machine, or shares of a CPU's cores, each with a host of its own."""

import contextlib
import copy
import dataclasses
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from autotune.core import InvalidRequest, TuningRequest, Workload
from autotune.core.errors import DeviceInUse, ProbeHostFailed
from autotune.core.measurement import JOIN
from autotune.core.note import Note, NoteKind
from autotune.core.time_limit import TimeLimit
from autotune.executors import Executor, ExecutorLost
from autotune.executors.likeness import check_alike, likeness
from autotune.executors.pool import Pool, ThreadPool
from autotune.probe import Account, Host, Probe
from autotune.probe.device import nvml
from autotune.probe.order import Order
from autotune.probe.process.launcher import HostSet, on_cores
from autotune.probe.queries import read_environment

LOCKS = Path("/tmp")
"""Folder of the locks, a file for each card's uuid and, on a cluster, for each core that a device has. It is the system's: a
folder that the first of several users made would be theirs."""

MOST_RESTARTS = 2
"""Largest number of restarts of a host that was lost."""


class LocalHost:
    """Hosts on some of this machine's cores; their end while they run a probe is a lost executor."""

    uses_cache = True

    def __init__(self, objects: bytes = b"", cores: Collection[int] = ()) -> None:
        self.objects, self.cores = objects, frozenset(cores)
        self.hosts = HostSet(objects, self.cores)
        self.scratch_folder, self.beside = self.hosts.scratch_folder, self.hosts.beside
        self.abandon = self.hosts.abandon
        self._lock, self._restarts = threading.RLock(), 0

    def __enter__(self) -> Self:
        self.hosts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.hosts.__exit__()

    @property
    def time_limit(self) -> TimeLimit:
        """Of the command."""
        return self.hosts.time_limit

    @time_limit.setter
    def time_limit(self, time_limit: TimeLimit) -> None:
        self.hosts.time_limit = time_limit

    def across(self, cores: frozenset[int]) -> "LocalHost":
        """The same hosts, which run its orders on these cores."""
        other = copy.copy(self)
        other.cores = cores
        return other

    def run(self, order: Order) -> Account:
        is_probe = order.kind == "probe"
        try:
            with self._lock, on_cores(self.cores):
                self.hosts.cores = self.cores
                account = self.hosts.run(order)
        except ProbeHostFailed as error:  # it was killed while it started
            if is_probe or self.hosts.is_abandoned:
                raise self._lost(error.message) from None
            raise
        if self.hosts.is_abandoned or (is_probe and account["ended"] in ("host ended", "host hung")):
            raise self._lost("the process that starts its probes was killed")
        return account

    def _lost(self, reason: str) -> ExecutorLost:
        return ExecutorLost("it was left" if self.hosts.is_abandoned else reason)

    def restart(self) -> bool:
        """True if it may be used again: it starts automatically with its next order."""
        self._restarts += 1
        return not self.hosts.is_abandoned and self._restarts <= MOST_RESTARTS

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
    """Disjoint cores of each of so many devices; raises InvalidRequest if there are too few."""
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
        facts, used = likeness(own, cores), nvml.usage_of(own)
        executors.append(Executor(name, host, environment, workload, facts, used))
    check_alike(executors)
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
    try:
        handle = _opened(f"autotune-{name}.lock")
    except OSError:
        return None
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(name: str) -> int:
    """This file of LOCKS, made if it is missing.

    Raises OSError if it is not a file, or the folder is another user's: no link is followed, and another user's file is
    opened without O_CREAT, which the kernel would refuse.
    """
    folder = os.open(LOCKS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid not in (0, os.getuid()):
            raise PermissionError(errno.EPERM, "the folder is another user's")
        with contextlib.suppress(FileExistsError):
            made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            os.fchmod(made, 0o666)
            os.close(made)
        handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return handle
