"""Load, swapping, clocks and memory of the machine, and what happened around the timed steps."""

import contextlib
import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from autotune.core import Environment
from autotune.core.units import format_bytes
from autotune.probe.device.telemetry import CardReading, card_facts, card_reader, card_warnings, fell, joules_between

BUSY_SHARE = 0.25
"""Cores' worth of foreign work from which on a CPU measurement is warned: an eighth of the smallest machines (two cores),
and well above what an idle system's services use."""

BUSY_MACHINE = 0.5
"""Share of the cores from which foreign work puts a GPU's measurement in warning: the training itself needs one core and its
loader some; with half of them taken, loading and launching begin to wait."""

BUSY_LEAST_S = 0.5
"""Seconds from which foreign work is told: the kernel counts in hundredths of a second, on each core."""

SWAPPED_BYTES = 2**20
"""Swapped bytes from which a measurement is warned: a few pages come and go at any time without anyone waiting for them."""

CLOCKS_READ = 8
"""Cores whose clock and heat are read, evenly spread: older x86 kernels take 10 to 20 ms to tell an idle core's clock."""

PROC = Path("/proc")
CPUS = Path("/sys/devices/system/cpu")


class MachineMonitor:
    """Readings of machine and card at the beginning and the end of the timed steps.

    A reading never raises, starts no thread and takes milliseconds; what is unknown on a device stays unknown.
    """

    def __init__(self, environment: Environment) -> None:
        self._on_cpu = environment.is_cpu
        self._cores = _own_cores()
        cards = environment.device_uuids[int(os.environ.get("RANK", "0")) :] or (environment.device_uuid,)
        self._read_card = card_reader(cards[0])
        self._machine = ReadingDelta(MachineReading(), MachineReading())
        self._card = (CardReading(), CardReading())

    def start(self) -> None:
        """The first timed step begins."""
        with contextlib.suppress(Exception):  # whatever it is (no memory left, too), a reading ends no probe
            machine, card = self._read()
            self._machine, self._card = ReadingDelta(machine, MachineReading()), (card, CardReading())

    def stop(self) -> None:
        """The last timed step has ended."""
        with contextlib.suppress(Exception):
            machine, card = self._read()
            self._machine, self._card = replace(self._machine, ended=machine), (self._card[0], card)

    @property
    def joules(self) -> float | None:
        """The device's energy from start to stop; None without a counter, or in less than a second."""
        return joules_between(*self._card, seconds=self._machine.seconds)

    def facts(self) -> dict[str, Any]:
        """Plain data by name with its unit; nothing that is unknown.

        `foreign_cores`, `stolen_cores` (a part of them), `swapped_bytes` and `cpu_heat_throttles` are those between start
        and stop; `cpu_mhz` (mean of cores), `temperature_c`, `sm_clock_mhz` and `power_w` those at the stop, with
        `_at_start` those at the start; `throttle_reasons` those met at either.
        """
        return self._machine.facts() | card_facts(*self._card)

    def warnings(self) -> tuple[str, ...]:
        """What speaks against trusting the timed steps."""
        return (*self._machine.warnings(self._on_cpu), *card_warnings(*self._card))

    def _read(self) -> "tuple[MachineReading, CardReading]":
        # A GPU's training does not follow the clock of cores that mostly wait for it.
        return read_machine(self._cores, clocks=self._on_cpu), self._read_card()


@dataclass(frozen=True)
class MachineReading:
    """The machine at one moment; None, or no entry, where the kernel does not tell.

    clock_s: a moment's name, of `time.perf_counter`. busy_s, stolen_s: seconds since boot in which the cores that this
    process may use worked, and in which the hypervisor kept them from it. ours_s: those of this process and its
    descendants. swapped_bytes: since boot, in and out. cpu_mhz, cpu_max_mhz: means of cores. heat_throttles: each
    counter's times since boot.
    """

    clock_s: float = 0.0
    cores: int = 0
    busy_s: float | None = None
    stolen_s: float | None = None
    ours_s: float | None = None
    swapped_bytes: int | None = None
    cpu_mhz: float | None = None
    cpu_max_mhz: float | None = None
    heat_throttles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadingDelta:
    """Two readings of a machine, and what happened between them; None where it is unknown."""

    begun: MachineReading
    ended: MachineReading

    @property
    def seconds(self) -> float:
        return self.ended.clock_s - self.begun.clock_s

    @property
    def foreign_cores(self) -> float | None:
        """Cores' worth of work that was not ours, of the cores that we may use, with what the hypervisor took."""
        stolen, busy, ours = self.stolen_cores, self._rate("busy_s"), self._rate("ours_s")
        return None if stolen is None or busy is None or ours is None else max(0.0, busy + stolen - ours)

    @property
    def stolen_cores(self) -> float | None:
        """Cores' worth of time in which a core had work and the hypervisor ran another machine on it."""
        return self._rate("stolen_s")

    @property
    def heat_throttles(self) -> int | None:
        """Times that a core was slowed for heat: the most of any counter, for a package's cores all count the package's."""
        both = self.begun.heat_throttles.keys() & self.ended.heat_throttles.keys()
        rises = [self.ended.heat_throttles[name] - self.begun.heat_throttles[name] for name in both]
        return max(0, *rises) if rises else None

    def facts(self) -> dict[str, Any]:
        """What is known, by name with its unit."""
        facts = {
            "foreign_cores": (self.foreign_cores, 2),
            "stolen_cores": (self.stolen_cores, 2),
            "swapped_bytes": (self._more("swapped_bytes"), 0),
            "cpu_mhz_at_start": (self.begun.cpu_mhz, 0),
            "cpu_mhz": (self.ended.cpu_mhz, 0),
            "cpu_max_mhz": (self.ended.cpu_max_mhz, 0),
            "cpu_heat_throttles": (self.heat_throttles, 0),
        }
        return {name: round(value, digits) for name, (value, digits) in facts.items() if value is not None}

    def warnings(self, on_cpu: bool) -> list[str]:
        """What speaks against a time measured meanwhile; on_cpu: the cores themselves did the training."""
        warnings = self._busy_warnings(BUSY_SHARE if on_cpu else BUSY_MACHINE * self.begun.cores)
        if (swapped := self._more("swapped_bytes") or 0) > SWAPPED_BYTES:
            warnings.append(f"the machine swapped {format_bytes(swapped)} meanwhile")
        if self.heat_throttles:
            warnings.append(f"the CPU was throttled for heat {self.heat_throttles} time(s)")
        if fell(before := self.begun.cpu_mhz, after := self.ended.cpu_mhz):
            warnings.append(f"the CPU's clock fell from {before:.0f} to {after:.0f} MHz meanwhile")
        return warnings

    def _busy_warnings(self, most: float) -> list[str]:
        foreign, stolen = self.foreign_cores, self.stolen_cores
        if foreign is None or stolen is None or foreign <= most:
            return []
        hypervisor = f"the hypervisor gave {stolen:.1f} cores of this machine to others"
        if stolen <= foreign / 2:
            return [f"other processes used {foreign:.1f} cores meanwhile"]
        others = f"other processes used {foreign - stolen:.1f} cores meanwhile"
        return [hypervisor, others] if foreign - stolen > most else [hypervisor]

    def _rate(self, counter: str) -> float | None:
        """A counter's seconds, by the second; None in less than BUSY_LEAST_S."""
        more = self._more(counter)
        return None if more is None or self.seconds < BUSY_LEAST_S else more / self.seconds

    def _more(self, counter: str) -> Any:
        before, after = getattr(self.begun, counter), getattr(self.ended, counter)
        return None if before is None or after is None else max(0, after - before)


def machine_memory() -> tuple[int, int]:
    """(total, available) bytes of the machine, or of the control group where that is less."""
    memory = psutil.virtual_memory()
    total, free = memory.total, memory.available
    for limit_file, used_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):
            limit = int((Path("/sys/fs/cgroup") / limit_file).read_text())
            used = int((Path("/sys/fs/cgroup") / used_file).read_text())
            total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free


def cpu_name() -> str:
    """The processor as the kernel calls it, else its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def read_machine(cores: frozenset[int], clocks: bool = True) -> MachineReading:
    """The machine now. cores: those whose work counts; clocks: whether their clocks are read."""
    some = sorted(cores)[:: max(1, math.ceil(len(cores) / CLOCKS_READ))]
    counted, busy, stolen = _core_seconds(cores)
    return MachineReading(
        clock_s=time.perf_counter(),
        cores=counted,
        busy_s=busy,
        stolen_s=stolen,
        ours_s=_our_seconds(),
        swapped_bytes=_swapped_bytes(),
        cpu_mhz=_mean_mhz(some, "scaling_cur_freq") if clocks else None,
        cpu_max_mhz=_mean_mhz(some, "cpuinfo_max_freq") if clocks else None,
        heat_throttles=_heat_throttles(some),
    )


def _own_cores() -> frozenset[int]:
    """The cores that this process may use: all its threads', since OpenMP may have bound each to one."""
    cores: set[int] = set()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # not on every system
        for thread in (PROC / "self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                cores |= os.sched_getaffinity(int(thread.name))
    return frozenset(cores)


def _core_seconds(cores: frozenset[int]) -> tuple[int, float | None, float | None]:
    """How many cores count, and their working and stolen seconds since boot, of /proc/stat (proc(5)).

    Where not all of them are listed (a container may number its cores anew) every core counts.
    """
    with contextlib.suppress(OSError, ValueError):
        listed = {}
        for line in (PROC / "stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                listed[int(name[3:])] = [int(ticks) for ticks in fields]
        counted = [listed[core] for core in (cores if cores and cores <= listed.keys() else listed)]
        tick = 1 / os.sysconf("SC_CLK_TCK")
        busy = stolen = 0
        for user, nice, system, _idle, _wait, irq, softirq, steal, *_guests in counted:
            busy += user + nice + system + irq + softirq  # guests' time is within user's
            stolen += steal
        if counted:
            return len(counted), busy * tick, stolen * tick
    return 0, None, None


def _our_seconds() -> float | None:
    """User and system seconds of this process and its descendants (its loader's workers), those that ended included; of
    several ranks all of theirs, which are the children of one host."""
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
    """The mean of a cpufreq value, which the kernel tells in kHz."""
    clocks = [khz for core in cores if (khz := _number(CPUS / f"cpu{core}/cpufreq/{name}"))]
    return sum(clocks) / len(clocks) / 1000 if clocks else None


def _heat_throttles(cores: list[int]) -> dict[str, int]:
    """Each core's own counter of slowing for heat and its package's (x86: Documentation/ABI, thermal_throttle)."""
    counters = {}
    for core in cores:
        for kind in ("core", "package"):
            times = _number(CPUS / f"cpu{core}/thermal_throttle/{kind}_throttle_count")
            if times is not None:
                counters[f"{core} {kind}"] = times
    return counters


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
