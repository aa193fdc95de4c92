"""Kill the parts of a real service at random moments; count what is lost, doubled, stuck, left behind or done again.

python -m tests.service.kills --count 1000 --database sqlite|postgres [--seed 0] [--victims server,runner] [--real]
                              [--standby]

Some three seconds a kill; exit code 1 if anything was lost, doubled, stuck or left behind. --real: probes are real ones, of a
tiny model, and between two kills at least one ends; some twenty seconds a kill. --standby: a second server waits, and takes the
place of the one that is killed; a stream of all changes is read through all of it by Last-Event-ID.

    submitting (a thread here, one key a search, sent until it is acknowledged)
        └─ autotune serve ─> runner ─> supervisor ─> host ─> child       one of these is killed (SIGKILL),
             └─ PostgreSQL                                               server and database are started again;
                                                                         or connections to PostgreSQL are cut
By default probes are replayed by real hosts' real children (`tests/service/replayed`).
"""

import argparse
import contextlib
import json
import os
import random
import socket
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

from autotune.probe.order import ANSWER
from autotune.service.records import DONE, ENDED, MOST_ATTEMPTS, Search
from autotune.service.store import Store
from autotune.service.tables import open_database
from benchmarks.kills import GONE_S, Facts, compare, family, is_alive, last_order, measured, with_descendants
from tests.service.dispatching import faults
from tests.service.postgres import Postgres
from tests.service.searches import REQUEST, Replaying, study_of
from tests.service.servers import Server, announced, begun, hurried, serving

VICTIMS = {"server": 3, "runner": 4, "supervisor": 1, "host": 2, "child": 4, "database": 2, "connections": 4}
"""What is killed, and how often in so many kills; `database` where that is a process, and `connections` to it."""
OF_POSTGRES = ("database", "connections")

MEAN_S = 1.5
"""Mean seconds between kills."""

EARLY = 0.2
"""Share of the servers that are killed while they start."""

PROBE_S = 0.15
"""Seconds that a replayed probe takes."""

REAL = {**REQUEST, "global_batch_size": 2, "only": {"precision": ["fp32"]}}
"""A request for real probes that take seconds."""

BETWEEN_S = 120.0
"""Seconds in which a real probe must end after a kill, or it counts as one after which none did."""

OPEN = 3
"""Searches that are queued or run at any time."""

MOST_OF_ONE_ORDER = 2
"""Kills below one order, after each of which it is begun again; a third one is taken as a crash of its own."""

STUCK_S = 180.0
"""Seconds without any change after which what has not ended counts as stuck."""


@dataclass
class Counts:
    """What came of the kills. seconds: longest until all that had to end with a victim had, and until server, database and lock
    were there again. repeated: replayed probes that were begun again."""

    kills: Counter[str] = field(default_factory=Counter)
    between: int = 0  # kills after which a trial or a round was measured before the next one
    seconds: dict[str, float] = field(default_factory=dict)
    searches: int = 0
    measured: int = 0  # trials and rounds
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    repeated: int = 0
    takeovers: list[float] = field(default_factory=list)  # seconds until the standby answered

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.stuck, *self.left]


class Killer:
    """Runs a service in a folder and kills its parts. url: of its database; postgres: the server of that, if it has one."""

    def __init__(
        self, folder: Path, url: str, postgres: Postgres | None, seed: int, log: bool, real: bool, standby: bool = False
    ) -> None:
        self.standby, self._changes = standby, list[int]()
        self.folder, self.postgres, self.chance, self.log = folder.absolute(), postgres, random.Random(seed), log
        self.state, self.temporary = self.folder / "state" / "autotune", self.folder / "tmp"
        self.temporary.mkdir()
        self.replaying, self.real = Replaying(self.folder / "replaying", probe_s=PROBE_S), real
        variables = hurried(self.folder) if real else self.replaying.environment
        self.variables = variables | {"TMPDIR": str(self.temporary)}
        self._engine = open_database(url)
        self.store = Store(self._engine)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.words = ["--port", f"{free.getsockname()[1]}", "--database", url]
        self.counts = Counts()
        self.submitted: dict[str, str] = {}  # key -> id, once acknowledged
        self._serving, self._ending = contextlib.ExitStack(), threading.Event()
        self._token, self._seen = "", dict[Path, Facts]()
        self._of_order: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.start()
        self._submitting = threading.Thread(target=self._submit)
        self._submitting.start()
        if self.standby:
            self._stand_by()
            threading.Thread(target=self._listen, daemon=True).start()
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
        if self._token and self.chance.random() < EARLY:
            with begun(self.folder, *self.words, variables=self.variables) as process:
                time.sleep(self.chance.uniform(0, 2.0))
                process.kill()
            self.counts.kills["server"] += 1
        self.server: Server = self._serving.enter_context(
            serving(self.folder, *self.words, variables=self.variables, token=self._token)
        )
        self._token = self.server.token

    def _stand_by(self) -> None:
        """Start a second server, which takes the place of the first."""
        self._second = begun(self.folder, *self.words, "--standby", variables=self.variables)
        self._serving.callback(self._second.wait)
        self._serving.callback(self._second.kill)

    def _listen(self) -> None:
        """Read all changes through all servers; each stream begins after the last event of the one before."""
        after = "0"
        while True:
            with contextlib.suppress(httpx2.TransportError, httpx2.StreamError):
                http = self.server.http
                with http, http.sse("/events", headers={"Last-Event-ID": after}) as source:
                    for event in source if source.response.status_code == 200 else ():
                        if event.id:
                            after = event.id
                            self._changes.append(int(after))
            time.sleep(0.2)

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
                        request = {**(REAL if self.real else REQUEST), "seed": number, "device": "cpu"}
                        answer = http.post("/searches", json=request, headers={"Idempotency-Key": key})
                        if answer.status_code in (200, 201):
                            self.submitted[key] = answer.json()["id"]
            self._ending.wait(0.3)

    # Kills ------------------------------------------------------------------------------------------------------

    def kill(self, count: int, victims: dict[str, int] = VICTIMS) -> None:
        """Kill so many of these."""
        kinds = {kind: weight for kind, weight in victims.items() if kind not in OF_POSTGRES or self.postgres}
        kills, before = 0, self._measured()
        while (now := self.counts.kills.total()) < count:
            if (self.real or self.standby) and now > kills:
                until = time.monotonic() + BETWEEN_S
                while self._measured() <= before and time.monotonic() < until:
                    time.sleep(0.1)
            time.sleep(self.chance.expovariate(1 / MEAN_S))
            self.counts.between += now > kills > 0 and self._measured() > before
            kills, before = now, self._measured()
            (victim,) = self.chance.choices([*kinds], [*kinds.values()])
            self._kill(victim)

    def _kill(self, victim: str) -> None:
        running = self.running()
        processes = dict(family(running.pid)) if running and running.pid else {}
        named = {"runner": "search"}.get(victim, victim)
        if victim == "database":
            assert self.postgres is not None
            begun = self.postgres.kill(self.chance)
            time.sleep(self.chance.uniform(0, 1))
            self.postgres.start()
            self._count(victim, time.monotonic() - begun)
            return
        if victim == "connections":
            assert self.postgres is not None
            begun = self.postgres.cut(self.chance)
            while not self.postgres.is_held() and time.monotonic() < begun + GONE_S:
                time.sleep(0.05)
            if not self.postgres.is_held():
                self.counts.stuck.append("the server did not take its lock again")
            self._count(victim, time.monotonic() - begun)
            return
        if victim != "server" and (named not in processes or running is None):
            return
        study = study_of(self.state, running.id) if running else Path()
        if running is not None:
            order = f"{running.id}/{last_order(study, 0)}"
            if victim not in ("server", "child") and running.interruptions >= MOST_ATTEMPTS - 1:
                return
            if victim not in ("server", "runner") and self._of_order[order] >= MOST_OF_ONE_ORDER:
                return
            self._of_order[order] += victim not in ("server", "runner")
            for name, fact in measured(study).items():
                self._seen.setdefault(study, {}).setdefault(name, fact)
        process = psutil.Process(self.server.process.pid) if victim == "server" else processes[named]
        below, since = with_descendants(process), time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if victim == "server":
            self.server.process.wait()
            if self.standby:
                self.server = announced(self._second, self.folder, self._token)
                while self.server.http.get("/me").status_code != 200:
                    time.sleep(0.01)
                self.counts.takeovers.append(time.monotonic() - since)
                self._stand_by()
            else:
                self._serving.close()
                time.sleep(self.chance.uniform(0, 1))
                self.start()
        while any(map(is_alive, below)) and time.monotonic() < since + GONE_S:
            time.sleep(0.01)
        self.counts.left += [f"process {item.pid} of a killed {victim}" for item in below if is_alive(item)]
        self._count(victim, time.monotonic() - since)

    def _measured(self) -> int:
        """How many trials and rounds are measured."""
        return sum(1 for _ in (self.state / "searches").rglob(ANSWER))

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
        if self.standby:
            self._second.kill()
            until = time.monotonic() + GONE_S
            while self._changes[-1:] != [last] and time.monotonic() < until:
                time.sleep(0.1)
        if code := self.server.stop():
            counts.left.append(f"the server ended with {code}")
        self._serving.close()
        until = time.monotonic() + GONE_S
        while (left := [*self._left()]) and time.monotonic() < until:
            time.sleep(0.1)
        counts.left += left
        if self.standby:
            there, sent = [event.id for event in self.store.changes(0, 10**6)], Counter(self._changes)
            counts.lost += [f"change {number} was not sent" for number in there if not sent[number]]
            counts.doubled += [f"change {number} was sent {sent[number]} times" for number in sent if sent[number] > 1]
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
        counts, study = self.counts, study_of(self.state, search.id)
        if search.state != DONE:
            counts.lost.append(f"{search.id} is {search.state}: {search.problem}")
            return
        for fault in faults(self.store, self.state, search):
            (counts.doubled if fault.startswith("doubled") else counts.lost).append(f"{search.id} {fault}")
        now = measured(study)
        counts.measured += len(now)
        contents = {json.dumps(content, sort_keys=True) for content, _ in now.values()}
        if self.real and (twins := len(now) - len(contents)):
            counts.doubled.append(f"{search.id}: {twins} measurements are copies of others")
        lost, again = compare(self._seen.get(study, {}), now)
        counts.lost += [f"{search.id} {name}" for name in sorted(lost)]
        counts.doubled += [f"{search.id} {name} was measured again" for name in sorted(again - lost)]

    def _left(self) -> Iterator[str]:
        """Processes that were started for this folder, and temporary files."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and str(self.folder) in str(process.environ()) and is_alive(process):
                    yield f"process {process.pid}: {' '.join(process.cmdline())}"
        yield from map(str, self.temporary.iterdir())


def kill_service(
    count: int,
    database: str,
    folder: Path,
    seed: int = 0,
    victims: dict[str, int] = VICTIMS,
    log: bool = False,
    real: bool = False,
    standby: bool = False,
) -> Counts:
    """So many kills of a service in this folder. database: sqlite or postgres; real: with real probes; standby: with a second."""
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(Postgres()) if database == "postgres" else None
        url = postgres.url if postgres else f"sqlite:///{folder / 'state' / 'autotune' / 'service.db'}"
        killer = stack.enter_context(Killer(folder, url, postgres, seed, log, real, standby))
        killer.kill(count, victims)
        return killer.finish()


def main() -> None:
    """Run so many kills and print what came of them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", default=",".join(VICTIMS))
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--standby", action="store_true")
    options = parser.parse_args()
    victims = {name: VICTIMS[name] for name in options.victims.split(",")}
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        place = (options.count, options.database, Path(folder), options.seed)
        counts = kill_service(*place, victims, log=True, real=options.real, standby=options.standby)
    print(json.dumps(vars(counts), indent=2))
    sys.exit(1 if counts.faults else 0)


if __name__ == "__main__":
    main()
