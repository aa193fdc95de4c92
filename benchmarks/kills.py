"""Kill real searches at random moments, resume them by the same command, and count what was lost, repeated or left.

python benchmarks/kills.py 300 [FOLDER] [--seed 0] [--devices 2] [--report reports/kills.md]: some ten seconds a kill; exit
code 1 if anything was lost, repeated or left behind, or could not be resumed. Looks only at what it started itself, so that it
may run beside other searches.

    search ─> supervisor ─> host ─> child       one of the four is killed (SIGKILL), at a random moment
       └─ exit code 0: the study is finished, the next one begins; killed: the same command again
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
import psutil

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from autotune.commands.result import TuningResult  # noqa: E402
from autotune.core import Measurement  # noqa: E402
from autotune.core.interrupt import ending_on_signals  # noqa: E402
from autotune.probe.order import ANSWER, ORDER  # noqa: E402
from autotune.probe.process import cleanup  # noqa: E402
from autotune.sampler.physics import MEASUREMENT, REPEATS  # noqa: E402
from autotune.study.finish import KEPT as SANITY_CHECK  # noqa: E402
from autotune.study.store import OPTUNA_STUDY  # noqa: E402
from benchmarks.machine import write_table  # noqa: E402

SEARCH = (
    "search bert-mini --global-batch-size 2 --sequence-length 8 --device cpu --search-space quick --only precision=fp32 "
    "--n-trials 3 --no-history --quiet"
)
"""A few seconds of probes, one of rounds, and trainings that compare losses and rehearse the answer."""

VICTIMS = {"search": 3, "supervisor": 1, "host": 2, "child": 4}
"""Who is killed, and how often in so many kills."""

PHASES = {"sanity_check": "sanity_check", "confirmation": "confirmation", "probes": "probes"}
"""A part of the path of the order that was written last -> what the search was doing; without one it was starting."""

MEAN_S = 2.0
"""Mean seconds from the first order of a run, and from each kill, to the next kill."""

EARLY = 0.3
"""Share of the runs in which somebody is killed before that, at any moment of the start."""

GONE_S = 30.0
"""Seconds after which what is still there counts as left behind."""

RUN_S = 900.0
"""Seconds after which a search that nobody killed counts as hung."""

MOST_OF_ONE_ORDER = 2
"""Kills of one order's processes, after each of which it is begun again; a third one is taken as a crash of its own."""

MARK = "AUTOTUNE_KILLS"
"""Environment variable that everything started here carries."""

Facts = dict[str, tuple[dict[str, Any], int]]
"""File of a measurement -> its content, and when the order it answers was written (ns)."""


@dataclass
class Kill:
    """One kill and what came of it. seconds: until everything that had to end with the victim had."""

    victim: str
    phase: str
    seconds: float = 0.0
    resumed: bool = True
    lost: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    differing: set[str] = field(default_factory=set)

    @property
    def clean(self) -> bool:
        return self.resumed and not (self.lost or self.repeated or self.left or self.differing)


def kill_searches(number: int, folder: Path, seed: int = 0, log: bool = True, devices: int = 1) -> list[Kill]:
    """So many kills of searches whose studies, temporary files and cache lie in this folder; the last study is finished.

    Ctrl-C and SIGTERM end it early, with the kills so far.
    """
    killer = Killer(folder, random.Random(seed), number, log, devices)
    study = 0
    with contextlib.suppress(KeyboardInterrupt), ending_on_signals():
        while len(killer.kills) < number:
            killer.finish_study(f"killed-{seed}-{study}", study)
            study += 1
    return killer.kills


class Killer:
    """Runs searches and kills them."""

    def __init__(self, folder: Path, chance: random.Random, number: int, log: bool, devices: int = 1) -> None:
        self.folder, self.chance, self.number, self.log = folder.absolute(), chance, number, log
        self.devices = devices
        self.kills: list[Kill] = []
        self.start_s = 5.0
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        self.environment |= {
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            MARK: str(self.folder),
        }
        self.shared_memory = cleanup.shared_memory()

    def finish_study(self, name: str, study: int) -> None:
        """Run one command again and again, killing, until it ends by itself; check everything after each end."""
        sampler = ("random", "physics")[study % 4 == 3]
        words = [
            *SEARCH.split(),
            "--study-name",
            name,
            "--sampler",
            sampler,
            "--seed",
            str(study),
            "--devices",
            str(self.devices),
        ]
        words += ["--output-dir", str(self.folder / "reports")]
        place, known = self.folder / "reports" / name, Facts()
        while True:
            before = len(self.kills)
            code, output = self._run(words, place, known)
            killed = self.kills[before:]
            self._check_clear(killed)
            for kill in killed[-1:]:
                kill.differing |= differing(place, is_finished=False)
            lost, repeated = compare(known, measured(place))
            for kill in killed[-1:] or self.kills[-1:]:
                kill.lost |= lost
                kill.repeated |= repeated
                if kill.lost or kill.repeated:
                    self._say(f"{name}: lost {sorted(kill.lost)}, repeated {sorted(kill.repeated)}")
            if code == 0:
                result = TuningResult.load(place)
                assert result.complete, result.stop_reason
                half = {str(path) for path in place.rglob(".*") if path.name != ".lock"}
                for kill in self.kills[-1:]:
                    kill.left |= half
                    kill.differing |= differing(place, is_finished=True)
                    if kill.differing:
                        self._say(f"{name}: study.db differs in {sorted(kill.differing)}")
                return
            if not killed or (code not in (-9, 1)) or (code == 1 and killed[-1].victim == "search"):
                self._say(f"{name} ended with {code}:\n{output}")
                for kill in self.kills[-1:]:
                    kill.resumed = False
                return

    def _run(self, words: list[str], place: Path, known: Facts) -> tuple[int, str]:
        """One run with its kills: exit code and output. known: takes what was measured before each kill."""
        with tempfile.TemporaryFile() as output:
            command = [sys.executable, "-m", "autotune", *words]
            search = subprocess.Popen(
                command, env=self.environment, stdout=output, stderr=output, start_new_session=True, cwd=self.folder
            )
            try:
                self._kill_some(search, place, known)
            finally:
                if search.poll() is None:
                    search.kill()
                code = search.wait()
            output.seek(0)
            return code, output.read().decode(errors="replace")[-3000:]

    def _kill_some(self, search: subprocess.Popen[bytes], place: Path, known: Facts) -> None:
        """Kill processes of this run at random moments, until it ends or hangs."""
        begun, of_order = time.time_ns(), dict[str, int]()
        started = time.monotonic()
        until, early = started + RUN_S, self.chance.random() < EARLY
        while search.poll() is None and time.monotonic() < until:
            victim = self.chance.choices([*VICTIMS], [*VICTIMS.values()])[0]
            if early:
                self._wait(search, started + self.chance.uniform(0, self.start_s))
                early = False
            else:
                if not last_order(place, begun) and self._wait_for_order(search, place, begun) and not of_order:
                    self.start_s = time.monotonic() - started
                self._wait(search, time.monotonic() + self.chance.expovariate(1 / MEAN_S))
            if len(self.kills) >= self.number:
                self._wait(search, until)
            elif (process := self._find(search, victim)) is not None:
                order = last_order(place, begun)
                of_order[order] = of_order.get(order, 0) + (victim != "search")
                if order and of_order[order] > MOST_OF_ONE_ORDER:
                    continue
                self._kill(search, process, victim, order, place, known)

    def _wait(self, search: subprocess.Popen[bytes], until: float) -> None:
        while search.poll() is None and time.monotonic() < until:
            time.sleep(0.01)

    def _wait_for_order(self, search: subprocess.Popen[bytes], place: Path, begun: int) -> bool:
        """Until this run has ordered something of its study; False where it ended before."""
        while search.poll() is None:
            if last_order(place, begun):
                return True
            time.sleep(0.05)
        return False

    def _find(self, search: subprocess.Popen[bytes], victim: str) -> psutil.Process | None:
        """The process of this kind, as soon as there is one; None once the search has ended."""
        while search.poll() is None:
            if alike := [process for kind, process in family(search.pid) if kind == victim]:
                return self.chance.choice(alike)
            time.sleep(0.01)
        return None

    def _kill(
        self,
        search: subprocess.Popen[bytes],
        process: psutil.Process,
        victim: str,
        order: str,
        place: Path,
        known: Facts,
    ) -> None:
        phase = next((phase for part, phase in PHASES.items() if part in order), "start-up")
        for name, fact in measured(place).items():
            known.setdefault(name, fact)
        ended = with_descendants(process)
        kill, begun = Kill(victim, phase), time.monotonic()
        if victim == "search":
            search.kill()
            search.wait()  # before psutil reaps it: its exit code would be lost
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        while time.monotonic() < begun + GONE_S and (
            any(map(is_alive, ended)) or (victim == "search" and any(self._left_of_dead()))
        ):
            time.sleep(0.01)
        kill.seconds = time.monotonic() - begun
        kill.left = {f"process {item.pid}" for item in ended if is_alive(item)}
        self.kills.append(kill)
        self._say(f"{len(self.kills)}: {victim} during {phase}, all gone after {kill.seconds:.2f} s")

    def _check_clear(self, kills: list[Kill]) -> None:
        """Nothing may be there between two runs; what is counts for the last kill, and goes."""
        until = time.monotonic() + GONE_S
        while left := [*self._left()]:
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        for kill in (kills or self.kills)[-1:]:
            kill.left |= {*left}
        if left:
            self._say(f"left behind: {left}")
            self.shared_memory = cleanup.shared_memory()

    def _left(self) -> Iterator[str]:
        yield from self._left_of_dead()
        yield from (f"/dev/shm/{name}" for name in cleanup.left_shared_memory(self.shared_memory))

    def _left_of_dead(self) -> Iterator[str]:
        yield from (f"process {process.pid}" for process in self._marked())
        yield from (str(path) for path in self.temporary.iterdir())

    def _marked(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == str(self.folder) and is_alive(process)
        except (psutil.Error, OSError):
            return False

    def _say(self, line: str) -> None:
        if self.log:
            print(line, file=sys.stderr, flush=True)


def family(search: int) -> list[tuple[str, psutil.Process]]:
    """The search's processes, each with its name; without those that are not there (yet)."""
    processes: list[tuple[str, psutil.Process]] = []
    try:
        processes.append(("search", psutil.Process(search)))
        for process in processes[0][1].children():
            if "autotune.probe.process.supervisor" in process.cmdline():
                processes.append(("supervisor", process))
                for host in process.children():
                    processes += [("host", host), *(("child", child) for child in host.children())]
    except psutil.Error:
        pass
    return processes


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie only waits for init to take note."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def with_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def last_order(place: Path, since_ns: int) -> str:
    """The order that was written last, as its place in the study; empty where this run has written none."""
    orders = []
    for path in place.rglob(ORDER):
        try:
            orders.append((path.stat().st_mtime_ns, str(path.relative_to(place))))
        except OSError:
            continue
    written, order = max(orders, default=(0, ""))
    return order if written >= since_ns else ""


def measured(place: Path) -> Facts:
    """What is measured and wholly on disk."""
    facts: Facts = {}
    for name in (ANSWER, SANITY_CHECK):
        for path in place.rglob(name):
            try:
                content, order = json.loads(path.read_bytes()), path.parent / ORDER
                facts[str(path.relative_to(place))] = content, order.stat().st_mtime_ns
            except (OSError, ValueError):
                continue
    return facts


def differing(place: Path, is_finished: bool) -> set[str]:
    """Measurements in which Optuna's study and the folder differ.

    Not finished: the study may lack what was measured last, and has nothing that is not on disk.
    """
    if not (place / OPTUNA_STUDY).exists():
        return {OPTUNA_STUDY} if is_finished else set()
    there: dict[str, Any] = {}
    with contextlib.suppress(KeyError):  # killed while it was created
        for trial in optuna.load_study(study_name=place.name, storage=f"sqlite:///{place / OPTUNA_STUDY}").trials:
            folder = f"probes/{trial.number:04d}"
            if MEASUREMENT in trial.user_attrs:
                there[f"{folder}/{ANSWER}"] = trial.user_attrs[MEASUREMENT]
                there |= {f"{folder}/confirmation-{each['round']}/{ANSWER}": each for each in trial.user_attrs[REPEATS]}
    facts = {name: content for name, (content, _) in measured(place).items() if name.startswith("probes/0")}
    on_disk, in_study = (
        {name: replace(Measurement.from_dict(content), round=0) for name, content in found.items()}
        for found in (facts, there)
    )
    wrong = {name for name, content in in_study.items() if on_disk.get(name) != content}
    return wrong | (on_disk.keys() - in_study.keys() if is_finished else set())


def compare(known: Facts, now: Facts) -> tuple[set[str], set[str]]:
    """(lost, repeated): what was measured before a kill and is another thing now, and what was ordered again.

    What was disturbed is measured again on purpose: until that is done the disturbed measurement lies there, and the later one
    says what it repeats.
    """
    lost, repeated = set[str](), set[str]()
    for name, (content, ordered) in known.items():
        later, again = now.get(name, (None, ordered))
        disturbed = content.get("observed_warnings") or []
        if not (disturbed and (later == content or _repeats(later, disturbed))):
            lost |= {name} if later != content else set()
            repeated |= {name} if again != ordered else set()
    return lost, repeated


def _repeats(later: Mapping[str, Any] | None, warnings: Sequence[Any]) -> bool:
    """True if this measurement was made because of these warnings of an earlier one."""
    return later is not None and all(warning in (later.get("repeated_because") or []) for warning in warnings)


def table(kills: list[Kill]) -> list[str]:
    """Markdown: by who was killed, and when."""
    lines = [
        "| killed | during | kills | resumed | lost | repeated | left | study.db differs | longest until all was gone, s |",
        "|---" * 9 + "|",
    ]
    groups = sorted({(kill.victim, kill.phase) for kill in kills}, key=lambda group: [*map(str, group)])
    for victim, phase in [*groups, ("all", "")]:
        some = [kill for kill in kills if victim == "all" or (kill.victim, kill.phase) == (victim, phase)]
        counts = [len(some), *(sum(kill.resumed for kill in some),)]
        counts += [sum(len(getattr(kill, name)) for kill in some) for name in ("lost", "repeated", "left", "differing")]
        longest = max(kill.seconds for kill in some)
        lines.append(f"| {victim} | {phase} | {' | '.join(map(str, counts))} | {longest:.2f} |")
    return lines


def main() -> None:
    """Run so many kills, print the table and keep it."""
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    asked.add_argument("number", type=int)
    asked.add_argument("folder", type=Path, nargs="?")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--devices", type=int, default=1)
    asked.add_argument("--report", type=Path)
    words = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        kills = kill_searches(words.number, words.folder or Path(temporary), words.seed, devices=words.devices)
        report = words.report or Path(temporary) / "kills.md"
        write_table(report, "Searches that were killed", [*ABOUT, "", *table(kills)])
    sys.exit(0 if all(kill.clean for kill in kills) else 1)


ABOUT = (
    "Small searches on the CPU, one of whose processes is killed (SIGKILL) at random moments; then the same command again,",
    "until the study is finished. Killed: the search itself, the supervisor or the host of its probes, or the child that",
    "trains. Lost: measurements that were whole on disk and are gone or changed; repeated: that were made again; left:",
    "processes, shared memory and temporary files that stayed. study.db differs: measurements that Optuna's study has and the",
    "folder has not, after a kill, and the other way round once the study is finished.",
)


if __name__ == "__main__":
    main()
