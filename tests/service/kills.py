"""Kill the parts of a real service at random moments; count what is lost, doubled, stuck, left behind or done again.

python -m tests.service.kills --count 1000 --database sqlite|postgres --table FILE [--seed 0]: some three seconds a kill; exit
code 1 if anything was lost, doubled, stuck or left behind.

    submitting (a thread here, one key a search, sent until it is acknowledged)
        └─ autotune serve ─> runner ─> supervisor ─> host ─> child       one of these is killed (SIGKILL),
             └─ PostgreSQL                                               server and database are started again

Probes are replayed by real hosts' real children (`tests/service/replayed`).
"""

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
import psutil

from autotune.service.records import DONE, ENDED, MOST_ATTEMPTS, Search
from autotune.service.store import Store
from autotune.service.tables import open_database
from benchmarks.kills import GONE_S, Facts, family, is_alive, last_order, measured, with_descendants
from tests.service.dispatching import faults
from tests.service.postgres import Postgres
from tests.service.searches import REQUEST, Replaying
from tests.service.servers import Server, serving

VICTIMS = {"server": 3, "runner": 4, "supervisor": 1, "host": 2, "child": 4, "database": 2}
"""What is killed, and how often in so many kills; `database` where that is a process."""

MEAN_S = 1.5
"""Mean seconds between kills."""

EARLY = 0.2
"""Share of the servers that are killed while they start."""

PROBE_S = 0.15
"""Seconds that a replayed probe takes."""

OPEN = 3
"""Searches that are queued or run at any time."""

MOST_OF_ONE_ORDER = 2
"""Kills below one order, after each of which it is begun again; a third one is taken as a crash of its own."""

STUCK_S = 180.0
"""Seconds without any change after which what has not ended counts as stuck."""


@dataclass
class Counts:
    """What came of the kills. seconds: longest until all that had to end with a victim had. repeated: probes begun again."""

    kills: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    searches: int = 0
    measured: int = 0  # trials and rounds
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    repeated: int = 0

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.stuck, *self.left]


class Killer:
    """Runs a service in a folder and kills its parts. url: of its database; postgres: the server of that, if it has one."""

    def __init__(self, folder: Path, url: str, postgres: Postgres | None, seed: int, log: bool) -> None:
        self.folder, self.postgres, self.chance, self.log = folder.absolute(), postgres, random.Random(seed), log
        self.state, self.temporary = self.folder / "state" / "autotune", self.folder / "tmp"
        self.temporary.mkdir()
        self.replaying = Replaying(self.folder / "replaying", probe_s=PROBE_S)
        self._engine = open_database(url)
        self.store = Store(self._engine)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.words = ["--port", f"{free.getsockname()[1]}", "--database", url]
        self.counts = Counts()
        self.submitted: dict[str, str] = {}  # key -> id, once acknowledged
        self._serving, self._ending = contextlib.ExitStack(), threading.Event()
        self._token, self._seen = "", dict[Path, Facts]()
        self._interruptions: Counter[str] = Counter()
        self._of_order: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.start()
        self._submitting = threading.Thread(target=self._submit)
        self._submitting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._submitting.join()
        self._serving.close()
        self._engine.dispose()

    # The service ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the server; some are killed before they answer."""
        variables = self.replaying.environment | {"TMPDIR": str(self.temporary)}
        last = [search.id for search in self._searches() if search.state not in ENDED]
        may_be = max((self._interruptions[search_id] for search_id in last), default=0) < MOST_ATTEMPTS - 2
        if self._token and may_be and self.chance.random() < EARLY:
            self._interruptions.update(last)
            with serving_at_most(self.chance.uniform(0, 2.0), self.folder, self.words, variables):
                self.counts.kills["server"] += 1
        self.server: Server = self._serving.enter_context(
            serving(self.folder, *self.words, variables=variables, token=self._token)
        )
        self._token = self.server.token

    def _submit(self) -> None:
        """Keep some searches open, each of which is sent with one key until a server has acknowledged it."""
        while not self._ending.is_set():
            with contextlib.suppress(httpx2.TransportError):
                key = next((key for key, known in self.submitted.items() if not known), f"key-{len(self.submitted)}")
                with self.server.http as http:
                    page = http.get("/searches", params={"limit": 100})
                    is_full = page.status_code != 200 or sum(not search["ended_at"] for search in page.json()) >= OPEN
                    if not is_full:
                        self.submitted.setdefault(key, "")
                        number = int(key.removeprefix("key-"))
                        request = {**REQUEST, "seed": number, "device": "cpu"}
                        answer = http.post("/searches", json=request, headers={"Idempotency-Key": key})
                        if answer.status_code in (200, 201):
                            self.submitted[key] = answer.json()["id"]
            self._ending.wait(0.3)

    # Kills ------------------------------------------------------------------------------------------------------

    def kill(self, count: int, victims: dict[str, int] = VICTIMS) -> None:
        """Kill so many of these."""
        kinds = {kind: weight for kind, weight in victims.items() if kind != "database" or self.postgres}
        while self.counts.kills.total() < count:
            time.sleep(self.chance.expovariate(1 / MEAN_S))
            (victim,) = self.chance.choices([*kinds], [*kinds.values()])
            self._kill(victim)

    def _kill(self, victim: str) -> None:
        running = self.running()
        processes = family(running.pid) if running and running.pid else {}
        named = {"runner": "search"}.get(victim, victim)
        if victim == "database":
            assert self.postgres is not None
            begun = self.postgres.kill(self.chance)
            time.sleep(self.chance.uniform(0, 1))
            self.postgres.start()
            self._count(victim, time.monotonic() - begun)
            return
        if victim != "server" and (named not in processes or running is None):
            return
        study = self.state / "searches" / running.id / "study" if running else Path()
        if running is not None:
            order = f"{running.id}/{last_order(study, 0)}"
            if victim != "child" and self._interruptions[running.id] >= MOST_ATTEMPTS - 1:
                return
            if victim not in ("server", "runner") and self._of_order[order] >= MOST_OF_ONE_ORDER:
                return
            self._interruptions[running.id] += victim != "child"
            self._of_order[order] += victim not in ("server", "runner")
            for name, fact in measured(study).items():
                self._seen.setdefault(study, {}).setdefault(name, fact)
        process = psutil.Process(self.server.process.pid) if victim == "server" else processes[named]
        below, begun = with_descendants(process), time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if victim == "server":
            self.server.process.wait()
            self._serving.close()
            time.sleep(self.chance.uniform(0, 1))
            self.start()
        while any(map(is_alive, below)) and time.monotonic() < begun + GONE_S:
            time.sleep(0.01)
        self.counts.left += [f"process {item.pid} of a killed {victim}" for item in below if is_alive(item)]
        self._count(victim, time.monotonic() - begun)

    def running(self) -> Search | None:
        """The running search, if there is one that the database knows of."""
        with contextlib.suppress(Exception):  # it is starting
            return next((search for search in self.store.running() if search.pid), None)
        return None

    def _count(self, victim: str, seconds: float) -> None:
        self.counts.kills[victim] += 1
        self.counts.seconds[victim] = max(seconds, self.counts.seconds.get(victim, 0.0))
        if self.log:
            print(f"{self.counts.kills.total()}: {victim}, {seconds:.2f} s", file=sys.stderr, flush=True)

    # The end ----------------------------------------------------------------------------------------------------

    def finish(self) -> Counts:
        """Let everything end, stop the server, and count."""
        counts, changed, last = self.counts, time.monotonic(), 0
        self._ending.set()
        self._submitting.join()
        while True:
            searches = self._searches()
            ended = [search for search in searches if search.state in ENDED]
            if (now := self.store.last_change()) != last:
                changed, last = time.monotonic(), now
            if len(ended) == len(searches) or time.monotonic() > changed + STUCK_S:
                break
            time.sleep(0.2)
        counts.stuck = [f"{search.id} is {search.state}" for search in searches if search not in ended]
        if code := self.server.stop():
            counts.left.append(f"the server ended with {code}")
        self._serving.close()
        until = time.monotonic() + GONE_S
        while (left := [*self._left()]) and time.monotonic() < until:
            time.sleep(0.1)
        counts.left += left
        counts.searches = len(searches)
        acknowledged = {key: search_id for key, search_id in self.submitted.items() if search_id}
        ids = {search.id for search in searches}
        counts.lost += [f"{search_id} of {key}" for key, search_id in acknowledged.items() if search_id not in ids]
        counts.doubled += (
            [f"{len(ids)} searches of {len(self.submitted)} keys"] if len(ids) > len(self.submitted) else []
        )
        for search in ended:
            self._check(search)
        executed = self.replaying.executed
        counts.repeated = len(executed) - len({*executed})
        return counts

    def _searches(self) -> list[Search]:
        page, cursor = self.store.list(limit=1000)
        assert cursor is None
        return [search for search in map(self.store.read, [search.id for search in page]) if search]

    def _check(self, search: Search) -> None:
        counts, study = self.counts, self.state / "searches" / search.id / "study"
        if search.state != DONE:
            counts.lost.append(f"{search.id} is {search.state}: {search.problem}")
            return
        for fault in faults(self.store, self.state, search):
            (counts.doubled if fault.startswith("doubled") else counts.lost).append(f"{search.id} {fault}")
        now = measured(study)
        counts.measured += len(now)
        for name, (content, ordered) in self._seen.get(study, {}).items():
            if name not in now or now[name][0] != content:
                counts.lost.append(f"{search.id} {name}")
            elif now[name][1] != ordered:
                counts.doubled.append(f"{search.id} {name} was measured again")

    def _left(self) -> Iterator[str]:
        """Processes that were started for this folder, and temporary files."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and str(self.folder) in str(process.environ()) and is_alive(process):
                    yield f"process {process.pid}: {' '.join(process.cmdline())}"
        yield from map(str, self.temporary.iterdir())


@contextlib.contextmanager
def serving_at_most(seconds: float, folder: Path, words: list[str], variables: dict[str, str]) -> Iterator[None]:
    """A server that is killed after these seconds, whether it answers by then or not."""
    from tests.service.servers import environment

    command = [sys.executable, "-m", "autotune", "serve", "--devices", "cpu", "--json", *words]
    with (folder / "stderr").open("a") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder, variables), stdout=subprocess.DEVNULL, stderr=stderr
        )
    time.sleep(seconds)
    process.kill()
    process.wait()
    yield


def kill_service(
    count: int, database: str, folder: Path, seed: int = 0, victims: dict[str, int] = VICTIMS, log: bool = False
) -> Counts:
    """So many kills of a service in this folder. database: sqlite or postgres."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(Postgres()) if database == "postgres" else None
        url = postgres.url if postgres else f"sqlite:///{folder / 'state' / 'autotune' / 'service.db'}"
        killer = stack.enter_context(Killer(folder, url, postgres, seed, log))
        killer.kill(count, victims)
        return killer.finish()


def table(counts: Counts) -> list[str]:
    """Markdown: kills by victim, and what came of them."""
    lines = [
        "| killed | kills | longest until all below was gone, and server and database answered again, s |",
        "|---|---|---|",
    ]
    lines += [
        f"| {victim} | {n} | {counts.seconds.get(victim, 0.0):.2f} |" for victim, n in sorted(counts.kills.items())
    ]
    lines += [f"| all | {counts.kills.total()} | {max(counts.seconds.values(), default=0.0):.2f} |", ""]
    names = ["searches", "trials and rounds", "lost", "doubled", "stuck", "left behind", "probes begun again"]
    numbers = [counts.searches, counts.measured, *map(len, (counts.lost, counts.doubled, counts.stuck, counts.left))]
    return [
        *lines,
        f"| {' | '.join(names)} |",
        "|---" * len(names) + "|",
        f"| {' | '.join(map(str, [*numbers, counts.repeated]))} |",
    ]


def main() -> None:
    """Run so many kills, print the table and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        counts = kill_service(options.count, options.database, Path(folder), options.seed, log=True)
    lines = table(counts)
    print("\n".join([*lines, *counts.faults]))
    if options.table:
        options.table.write_text("\n".join(lines) + "\n")
    sys.exit(1 if counts.faults else 0)


if __name__ == "__main__":
    main()
