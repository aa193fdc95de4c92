"""What went on around the timed steps: on machines made of files, and on this one with real work beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.core import Environment
from autotune.probe.device import machine as machine_module
from autotune.probe.device.machine import (
    SWAPPED_BYTES,
    MachineMonitor,
    machine_memory,
    read_machine,
)
from autotune.probe.device.telemetry import CardReading
from tests.makers import cpu, gpu
from tests.probe.processes import becomes_true, bounded

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


class Machine:
    """A machine's files in a folder, its clock, and our own work on it, all as the test sets them."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.proc, self.cpus = folder / "proc", folder / "cpus"
        self.now, self.ours_s = 1000.0, 7.0
        self.busy_s, self.stolen_s = [100.0] * cores, [10.0] * cores
        self.swapped_pages = 40
        self.proc.mkdir()
        self.write()

    def perf_counter(self) -> float:
        return self.now

    def write(self) -> None:
        lines = [f"cpu{core} {self._ticks(core)}" for core in range(len(self.busy_s))]
        (self.proc / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 5 0 1", "ctxt 9", ""]))
        swapped = f"nr_free_pages 5\npswpin {self.swapped_pages // 4}\npswpout {self.swapped_pages * 3 // 4}\n"
        (self.proc / "vmstat").write_text(swapped)

    def _ticks(self, core: int) -> str:
        fifth = round(self.busy_s[core] * TICK / 5)  # user, nice, system, interrupts and theirs later
        idle, waiting, guest = 123456, 789, 4 * fifth
        parts = (fifth, fifth, fifth, idle, waiting, fifth, fifth, round(self.stolen_s[core] * TICK), guest, guest)
        return " ".join(map(str, parts))

    def passes(self, seconds: float, ours_s: float = 0.0, work_s: float = 0.0, stolen_s: float = 0.0) -> None:
        """Time goes by, in which the cores together worked (ours included) and were stolen so long."""
        self.now += seconds
        self.ours_s += ours_s
        self.busy_s = [busy + work_s / len(self.busy_s) for busy in self.busy_s]
        self.stolen_s = [stolen + stolen_s / len(self.stolen_s) for stolen in self.stolen_s]
        self.write()

    def tells(self, core: int, name: str, value: int | str) -> None:
        path = self.cpus / f"cpu{core}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def machine_of(monkeypatch: pytest.MonkeyPatch, folder: Path, cores: int, own: set[int] | None = None) -> Machine:
    machine = Machine(folder, cores)
    monkeypatch.setattr(machine_module, "PROC", machine.proc)
    monkeypatch.setattr(machine_module, "CPUS", machine.cpus)
    monkeypatch.setattr(machine_module, "time", machine)
    monkeypatch.setattr(machine_module, "_our_seconds", lambda: machine.ours_s)
    monkeypatch.setattr(machine_module, "_own_cores", lambda: frozenset(range(cores) if own is None else own))
    return machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine of four cores, all ours to use."""
    return machine_of(monkeypatch, tmp_path, 4)


def begun(environment: Environment | None = None) -> MachineMonitor:
    watched = MachineMonitor(environment or cpu())
    watched.start()
    return watched


def warnings_after(watched: MachineMonitor) -> tuple[str, ...]:
    watched.stop()
    return tuple(map(str, watched.warnings()))


# A busy machine -------------------------------------------------------------------------------------------------

ON_CPU, BESIDE_A_GPU = cpu(), gpu()


def used(cores: float) -> str:
    return f"other processes used {cores} cores meanwhile"


GIVEN = "the hypervisor gave 0.8 cores of this machine to others"


@pytest.mark.parametrize(
    ("environment", "passes", "foreign_cores", "warnings"),  # passes: seconds, our work, all work, stolen
    [
        (ON_CPU, (10.0, 20.0, 22.4, 0.0), 0.24, []),  # a quarter of a core is bearable
        (ON_CPU, (10.0, 20.0, 22.6, 0.0), 0.26, [used(0.3)]),
        (ON_CPU, (10.0, 20.0, 19.0, 0.0), 0.0, []),  # the kernel counts ours later
        (ON_CPU, (10.0, 10.0, 11.0, 8.0), 0.9, [GIVEN]),
        (ON_CPU, (10.0, 10.0, 15.0, 8.0), 1.3, [GIVEN, used(0.5)]),
        (ON_CPU, (0.4, 0.0, 1.6, 0.0), None, []),  # too short to tell
        (BESIDE_A_GPU, (10.0, 10.0, 29.0, 0.0), 1.9, []),
        (BESIDE_A_GPU, (10.0, 10.0, 32.0, 0.0), 2.2, [used(2.2)]),
    ],
)
def test_foreign_work_and_what_the_hypervisor_takes_are_warned_of_by_their_cores(
    machine: Machine, environment: Environment, passes: Any, foreign_cores: float | None, warnings: list[str]
) -> None:
    watched = begun(environment)
    machine.passes(*passes)
    assert list(warnings_after(watched)) == warnings
    assert watched.facts().get("foreign_cores") == foreign_cores


def test_work_on_cores_that_we_may_not_use_is_no_foreign_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = machine_of(monkeypatch, tmp_path, 4, own={1, 2})
    watched = begun()
    machine.busy_s[0] += 10.0
    machine.busy_s[2] += 6.0
    machine.passes(10.0)
    assert warnings_after(watched) == ("other processes used 0.6 cores meanwhile",)


# Swap -----------------------------------------------------------------------------------------------------------


def test_swapping_in_and_out_is_warned_from_a_mebibyte_on(machine: Machine) -> None:
    watched = begun()
    machine.swapped_pages += SWAPPED_BYTES // PAGE
    machine.passes(10.0)
    assert warnings_after(watched) == ()
    assert watched.facts()["swapped_bytes"] == SWAPPED_BYTES
    machine.swapped_pages += 11 * 2**20 // PAGE
    machine.passes(10.0)
    assert warnings_after(watched) == ("the machine swapped 12 MiB meanwhile",)


# Clocks and heat ------------------------------------------------------------------------------------------------


def test_a_clock_that_falls_by_more_than_a_tenth_is_warned_of_and_not_read_beside_a_gpu(machine: Machine) -> None:
    machine.tells(0, "cpufreq/scaling_cur_freq", 3_000_000)
    watched, on_a_gpu = begun(), begun(gpu())
    machine.tells(0, "cpufreq/scaling_cur_freq", 2_600_000)
    assert warnings_after(watched) == ("the CPU's clock fell by 13% meanwhile, and ended at 2600 MHz",)
    assert warnings_after(on_a_gpu) == ()
    assert "cpu_mhz" not in on_a_gpu.facts()


# What is unknown, and what fails --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3\n", "cpu0 a b c d e f g h i j\n"])
def test_files_of_another_shape_are_unknown(machine: Machine, text: str) -> None:
    (machine.proc / "stat").write_text(text)
    (machine.proc / "vmstat").write_text(text)
    watched = begun()
    machine.now += 10
    assert warnings_after(watched) == ()
    assert watched.facts() == {}


def test_before_the_timed_steps_and_until_their_end_nothing_is_warned(machine: Machine) -> None:
    watched = MachineMonitor(gpu())
    assert (watched.facts(), watched.warnings(), watched.joules) == ({}, (), None)
    watched.start()
    machine.passes(10.0, work_s=40.0)
    assert (watched.facts(), watched.warnings(), watched.joules) == ({}, (), None)


def test_a_reading_that_fails_in_any_way_ends_no_probe(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> float:
        raise MemoryError

    watched = begun()
    monkeypatch.setattr(machine_module, "_our_seconds", failing)
    assert warnings_after(watched) == ()
    watched.start()
    assert watched.joules is None


# With a card ----------------------------------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[CardReading]:
    """What the card will say, one reading after the other."""
    readings: list[CardReading] = []

    def reader(uuid: str | None) -> object:
        return CardReading if uuid is None else lambda: readings.pop(0)

    monkeypatch.setattr(machine_module, "card_reader", reader)
    return readings


def test_a_gpu_s_facts_warnings_and_joules_stand_beside_the_machine_s(
    machine: Machine, card: list[CardReading]
) -> None:
    card.append(CardReading(energy_j=1000.0, sm_clock_mhz=1900, temperature_c=50))
    card.append(CardReading(energy_j=4000.0, sm_clock_mhz=1500, temperature_c=89))
    watched = begun(gpu())
    machine.passes(5.0, work_s=15.0)
    assert warnings_after(watched) == (
        "other processes used 3.0 cores meanwhile",
        "the card's SM clock fell by 21% meanwhile, and ended at 1500 MHz",
    )
    assert watched.joules == 3000.0
    facts = watched.facts()
    assert (facts["foreign_cores"], facts["sm_clock_mhz"], facts["sm_clock_mhz_at_start"]) == (3.0, 1500, 1900)
    assert json.loads(json.dumps(facts)) == facts


# This machine ---------------------------------------------------------------------------------------------------

BURN = "import sys, time\nend = time.monotonic() + 60\nwhile time.process_time() < {seconds} and time.monotonic() < end: pass"


def used_s(process: psutil.Process) -> float:
    return process.cpu_times().user + process.cpu_times().system


def test_our_own_processes_work_is_ours_while_they_live_and_after() -> None:
    before = read_machine(frozenset())["ours_s"]
    with bounded(subprocess.Popen([sys.executable, "-c", BURN.format(seconds=30)])) as child:
        living = psutil.Process(child.pid)
        assert becomes_true(lambda: used_s(living) >= 0.5, 60)
        meanwhile = read_machine(frozenset())["ours_s"]
        child.kill()
    after = read_machine(frozenset())["ours_s"]
    assert before + 0.5 <= meanwhile <= after + 0.1


GROUPS = {
    "a nested one": (
        "0::/user/job\n",
        {"user/memory.max": 900, "user/memory.current": 400, "user/job/memory.max": 800, "user/job/memory.current": 10},
        (800, 500),
    ),
    "no limit": ("0::/user\n", {"user/memory.max": "max", "user/memory.current": 5}, None),
    "that has read files": (
        "0::/\n",
        {"memory.max": 1000, "memory.current": 700, "memory.stat": "anon 250\ninactive_file 400\nactive_file 50"},
        (1000, 700),
    ),
    "of the first version that has read files": (
        "5:cpu:/x\n4:memory:/job\n0::/\n",
        {
            **{"memory/job/memory.limit_in_bytes": 700, "memory/job/memory.usage_in_bytes": 600},
            "memory/job/memory.stat": "inactive_file 10\ntotal_inactive_file 300",
        },
        (700, 400),
    ),
    "that is over its limit": ("0::/\n", {"memory.max": 100, "memory.current": 300}, (100, 0)),
}


@pytest.mark.parametrize(("line", "files", "seen"), GROUPS.values(), ids=GROUPS)
def test_the_memory_of_a_control_group_is_what_it_and_those_above_allow(
    line: str, files: dict[str, Any], seen: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine_module, "PROC", tmp_path / "proc")
    for name, value in {**files, "proc/self/cgroup": line}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}".strip() + "\n")
    total, free = machine_memory()
    assert (total, free) == seen if seen else total > 2**20


def test_a_machine_that_hides_its_memory_is_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = psutil.virtual_memory().total

    def hidden() -> None:
        raise KeyError(b"MemTotal:")

    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    total, free = machine_memory()
    assert total <= expected
    assert 0 < free <= total
