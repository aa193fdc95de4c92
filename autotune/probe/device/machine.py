"""Load, swapping, clocks and memory of the machine, read around the timed steps."""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from autotune.core import Environment
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe.device.telemetry import (
    CardReading,
    card_facts,
    card_reader,
    card_warnings,
    clock_reader,
    clock_warnings,
    joules_between,
)

BUSY_SHARE = 0.25
"""Cores of foreign work from which a CPU's measurement has a warning: an eighth of the smallest machines (two cores), and
well above what an idle system's services use."""

BUSY_MACHINE = 0.5
"""Share of the cores from which foreign work gives a GPU's measurement a warning: with half of them taken, loading and
launching begin to wait."""

BUSY_LEAST_S = 0.5
"""Seconds from which foreign work is known: the kernel counts in hundredths of a second, on each core."""

SWAPPED_BYTES = 2**20
"""Swapped bytes from which there is a warning: a few pages are swapped at any time without anyone waiting."""

CLOCKS_READ = 8
"""Cores whose clock is read, evenly spread: older x86 kernels take 10 to 20 ms for an idle core's clock."""

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


Reading = dict[str, Any]
"""The machine at one moment, without what the kernel does not show. `clock_s`: of `time.perf_counter`; `cores`: those that
count; `busy_s`, `stolen_s`: seconds since boot in which they worked, and in which the hypervisor kept them from this machine;
`ours_s`: of this process and its descendants; `swapped_bytes`: since boot, in and out; `cpu_mhz`, `cpu_max_mhz`: means of
cores."""


class MachineMonitor:
    """Readings of machine and card at the beginning and the end of the timed steps.

    A reading never raises, starts no thread and takes milliseconds. `sm_clock_mhz()` is the card's clock now, None if it is
    unknown.
    """

    def __init__(self, environment: Environment) -> None:
        self._on_cpu = environment.is_cpu
        self._cores = _own_cores()
        cards = environment.device_uuids[int(os.environ.get("RANK", "0")) :] or (environment.device_uuid,)
        self._read_card = card_reader(cards[0])
        self.sm_clock_mhz = clock_reader(cards[0])
        self._begun = self._ended = UNREAD

    def start(self) -> None:
        """The first timed step begins."""
        self._begun, self._ended = self._read(), UNREAD

    def stop(self) -> None:
        """The last timed step has ended."""
        self._ended = self._read()

    @property
    def joules(self) -> float | None:
        """The device's energy from start to stop; None without a counter, or in less than a second."""
        return joules_between(self._begun[1], self._ended[1], seconds=_seconds(self._begun[0], self._ended[0]))

    def facts(self) -> dict[str, Any]:
        """Plain data by name with its unit, without what is unknown.

        `foreign_cores`, `stolen_cores` (a part of them) and `swapped_bytes` are those between start and stop;
        `cpu_mhz` (mean of cores), `temperature_c`, `sm_clock_mhz` and `power_w` those at the stop, with
        `_at_start` those at the start; `throttle_reasons` those met at either.
        """
        return machine_facts(self._begun[0], self._ended[0]) | card_facts(self._begun[1], self._ended[1])

    def warnings(self) -> tuple[ResultWarning, ...]:
        """Reasons not to trust the timed steps."""
        most = BUSY_SHARE if self._on_cpu else BUSY_MACHINE * self._begun[0].get("cores", 0)
        facts = machine_facts(self._begun[0], self._ended[0])
        return (*machine_warnings(facts, most), *card_warnings(self._begun[1], self._ended[1]))

    def _read(self) -> tuple[Reading, CardReading]:
        with contextlib.suppress(Exception):  # whatever it is (also no memory left), a reading ends no probe
            # A GPU's training does not follow the clock of cores that mostly wait for it.
            return read_machine(self._cores, clocks=self._on_cpu), self._read_card()
        return UNREAD


UNREAD: tuple[Reading, CardReading] = ({}, CardReading())


def _seconds(begun: Reading, ended: Reading) -> float:
    return float(ended.get("clock_s", 0.0) - begun.get("clock_s", 0.0))


def machine_facts(begun: Reading, ended: Reading) -> dict[str, Any]:
    """See `MachineMonitor.facts`."""
    seconds = _seconds(begun, ended)
    rises = {name: max(0, ended[name] - begun[name]) for name in begun.keys() & ended.keys()}
    facts: dict[str, tuple[float | None, int]] = {}
    if seconds >= BUSY_LEAST_S and rises.keys() >= {"busy_s", "stolen_s", "ours_s"}:
        foreign_s = max(0.0, rises["busy_s"] + rises["stolen_s"] - rises["ours_s"])
        facts = {"foreign_cores": (foreign_s / seconds, 2), "stolen_cores": (rises["stolen_s"] / seconds, 2)}
    facts |= {
        "swapped_bytes": (rises.get("swapped_bytes"), 0),
        "cpu_mhz_at_start": (begun.get("cpu_mhz"), 0),
        "cpu_mhz": (ended.get("cpu_mhz"), 0),
        "cpu_max_mhz": (ended.get("cpu_max_mhz"), 0),
    }
    return {name: round(value, digits) for name, (value, digits) in facts.items() if value is not None}


def machine_warnings(facts: Mapping[str, Any], busy_cores: float) -> list[ResultWarning]:
    """Reasons not to trust times with these facts. busy_cores: of foreign work, beyond which it counts."""
    warnings: list[ResultWarning] = []
    foreign, stolen = facts.get("foreign_cores", 0.0), facts.get("stolen_cores", 0.0)
    if foreign > busy_cores:
        mostly_stolen = stolen > foreign / 2
        others = foreign - stolen if mostly_stolen else foreign
        if mostly_stolen:
            warnings.append(ResultWarning(WarningKind.STOLEN_CORES, {"cores": stolen}))
        if others > busy_cores:
            warnings.append(ResultWarning(WarningKind.OTHER_PROCESSES, {"cores": others}))
    if (swapped := facts.get("swapped_bytes", 0)) > SWAPPED_BYTES:
        warnings.append(ResultWarning(WarningKind.SWAPPED, {"bytes": swapped}))
    return [*warnings, *clock_warnings(WarningKind.CPU_CLOCK, facts.get("cpu_mhz_at_start"), facts.get("cpu_mhz"))]


def machine_memory() -> tuple[int, int]:
    """(total, available) bytes of the machine, or of the control group with the least, this process's or one above it."""
    try:
        memory = psutil.virtual_memory()
        total, free = memory.total, memory.available
    except (OSError, KeyError):  # a sandbox hides /proc/meminfo
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    for group, limit_file, used_file in _memory_groups():
        with contextlib.suppress(OSError, ValueError):
            limit, used = int((group / limit_file).read_text()), int((group / used_file).read_text())
            total, free = min(total, limit), min(free, max(0, limit - max(0, used - _idle_cache(group))))
    return total, free


def _idle_cache(group: Path) -> int:
    """Bytes of the page cache, of groups below too, that were not used lately: the kernel takes them back first.

    In the first version of groups the plain name is of this group alone (admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).
    """
    with contextlib.suppress(OSError, ValueError):
        counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))
    return 0


def _memory_groups() -> Iterator[tuple[Path, str, str]]:
    """(folder, file of the limit, file of the use) of this process's control group and of those above it (cgroups(7))."""
    lines = ["0::/", "0:memory:/"]  # a container shows its own group as the highest
    with contextlib.suppress(OSError):
        lines += (PROC / "self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, names = CGROUPS, ("memory.max", "memory.current")
        if controllers:
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        group = root / place.strip("/")
        yield from ((folder, *names) for folder in (group, *group.parents) if folder.is_relative_to(root))


def cpu_name() -> str:
    """The processor as the kernel calls it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def read_machine(cores: frozenset[int], clocks: bool = True) -> Reading:
    """The machine now. cores: those whose work counts; clocks: whether their clocks are read."""
    some = sorted(cores)[:: max(1, math.ceil(len(cores) / CLOCKS_READ))]
    reading = {
        "clock_s": time.perf_counter(),
        **_core_seconds(cores),
        "ours_s": _our_seconds(),
        "swapped_bytes": _swapped_bytes(),
        "cpu_mhz": _mean_mhz(some, "scaling_cur_freq") if clocks else None,
        "cpu_max_mhz": _mean_mhz(some, "cpuinfo_max_freq") if clocks else None,
    }
    return {name: value for name, value in reading.items() if value is not None}


def _own_cores() -> frozenset[int]:
    """Cores that this process may use: those of all its threads, since OpenMP may have bound each to one."""
    cores: set[int] = set()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not on every system
        for thread in (PROC / "self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                cores |= os.sched_getaffinity(int(thread.name))
    return frozenset(cores)


def _core_seconds(cores: frozenset[int]) -> Reading:
    """Number of cores that count, and their working and stolen seconds since boot, of /proc/stat (proc(5)).

    All cores if not all of these are listed: a container may number its cores differently.
    """
    with contextlib.suppress(OSError, ValueError):
        listed = {}
        for line in (PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                listed[int(name[3:])] = [int(ticks) for ticks in fields]
        counted = [listed[core] for core in (cores if cores and cores <= listed.keys() else listed)]
        busy = stolen = 0
        for user, nice, system, _idle, _wait, irq, softirq, steal, *_guests in counted:
            busy += user + nice + system + irq + softirq  # guests' time is within user's
            stolen += steal
        if counted:
            tick = 1 / os.sysconf("SC_CLK_TCK")
            return {"cores": len(counted), "busy_s": busy * tick, "stolen_s": stolen * tick}
    return {}


def _our_seconds() -> float | None:
    """User and system seconds of this process and its descendants, ended ones included.

    Of several ranks those of all, which are children of one host.
    """
    with contextlib.suppress(psutil.Error, OSError):
        me = psutil.Process()
        host = me.parent() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
        total = 0.0
        for process in host.children(recursive=True) if host else (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total
    return None


def _swapped_bytes() -> int | None:
    """Bytes swapped in and out since boot, of /proc/vmstat, which counts pages."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        counters = dict(line.split() for line in (PROC / "vmstat").read_text().splitlines())
        return (int(counters["pswpin"]) + int(counters["pswpout"])) * os.sysconf("SC_PAGE_SIZE")
    return None


def _mean_mhz(cores: list[int], name: str) -> float | None:
    """The mean of a cpufreq value (kHz)."""
    clocks = [khz for core in cores if (khz := _number(CPUS / f"cpu{core}/cpufreq/{name}"))]
    return sum(clocks) / len(clocks) / 1000 if clocks else None


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
