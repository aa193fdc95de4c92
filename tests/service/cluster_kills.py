"""Kill the parts of a service on a cluster of several hosts, or cut its network; count what is lost, doubled, stuck or left.

python -m tests.service.cluster_kills --kills 50 [--nodes 3] [--searches 20] [--seed 0] [--table FILE]
python -m tests.service.cluster_kills --cuts 10 [--cut server,standby,node] ...

As root, with Ray and PostgreSQL. Each host is a set of Linux namespaces on this machine: processes, network, name, /tmp and
shared memory of its own. A kill of a node or of the head ends all of its processes; Ray is started there again. Probes are
replayed.

    --kills                                            --cuts
    service: serve, --standby, PostgreSQL              one: serve   two: serve --standby   database: PostgreSQL
    head: Ray's head    node1, node2, ...: a CPU each, lent to searches

Network "cluster" joins all hosts, network "database" those of the servers with the one of the database. A cut takes a host's
cable out of one of them for 5 to 40 s.
"""

import argparse
import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psutil
import psycopg

from autotune.service.devices import JOIN
from autotune.service.records import QUEUED, RUNNING, Search
from benchmarks.kills import GONE_S, is_alive, measured, with_descendants
from tests.hurry import ROOT
from tests.service.dispatching import faults
from tests.service.kills import Counts, Killer, markdown, table
from tests.service.postgres import program
from tests.service.searches import REQUEST, study_of
from tests.service.servers import announced, begun

WEIGHTS = {"server": 8, "node": 2, "head": 0.3}
"""Victims of kills, and how often each is chosen."""

NETWORKS = {"cluster": "10.77.0", "database": "10.77.1"}
USERS = ("anna", "boris", "carla")
KEPT_OPEN = 6
"""Searches that are open at any time once fewer than the first ones are."""

CUT_S, DOWN_S, GAP_S = (5.0, 40.0), (2.0, 10.0), 6.0
"""Seconds for which a network is cut, and for which a killed node or head stays away; mean seconds between kills."""

PATIENT, PATIENCE_S = 0.5, 60.0
"""Share of the kills that wait for a measurement since the kill before, and for how many seconds at most."""

ENDED_S = 60.0
"""Seconds after which what had to end with a victim counts as left: a server kills a search that does not end in 30."""

SETTLED_S, STABLE_S = 150.0, 12.0
"""Seconds after a cut within which all must be as before, and for which it must stay so."""

MOST_OF_USER = 2
"""Searches of a user that run at a time, as `Dispatcher` has it."""

WRITES = """
CREATE TABLE writes (id bigserial PRIMARY KEY, at timestamptz, writer text, epoch int);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO writes (at, writer, epoch)
        SELECT clock_timestamp(), current_setting('application_name'), epoch FROM server;
    RETURN NULL; END $$;
"""
NOTED = ("searches", "events", "artifacts", "audit", "server")
"""Tables each of whose writes is noted with the server that made it (PGAPPNAME) and the epoch."""

WAIT_COLUMNS = ("of", "searches", "wait for the first start, median and longest, s")
CUT_COLUMNS = (
    "cut off",
    "times",
    "for, s",
    "takeovers",
    "longest until one, s",
    "longest until all was whole again, s",
)

INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); signal.pause()"
"""First process of a host: it reaps what has lost its parent."""


class Inside(subprocess.Popen[str]):
    """A process in a host; signals go to it, and not to the `nsenter` that waits for it."""

    def send_signal(self, sig: int) -> None:
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children():
                process.send_signal(sig)


class Host:
    """Namespaces with an address in some of the networks. number: the last part of the address."""

    def __init__(self, name: str, number: int, switch: "Host | None" = None, networks: Sequence[str] = ()) -> None:
        self.name, self.switch, self.is_up = name, switch, True
        self.ray: Inside | None = None
        command = (
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        )
        self._holder = subprocess.Popen([*command, sys.executable, "-c", INIT], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        (init,) = psutil.Process(self._holder.pid).children()
        self.init = init.pid
        self._enter = ("nsenter", "-t", str(self.init), "-n", "-m", "-u", "-i", "-p", "--")
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")
        self.run("mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", "/dev/shm")
        self._own_temporary()
        if switch is None:
            for network in NETWORKS:
                self.run("ip", "link", "add", network, "type", "bridge")
                self.run("ip", "link", "set", network, "up")
        for network in networks:
            assert switch is not None
            switch.plug(name, network, str(self.init))
            self.run("ip", "address", "add", f"{NETWORKS[network]}.{number}/24", "dev", network)
            self.run("ip", "link", "set", network, "up")
        self.address = f"{NETWORKS['cluster']}.{number}"

    def _own_temporary(self) -> None:
        """An empty /tmp, but for the folders in it of which Python imports."""
        own = Path(tempfile.mkdtemp(prefix="host-", dir="/var/tmp"))
        own.chmod(0o1777)
        imported = [Path(path) for path in (sys.prefix, ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        for name in {path.parts[2] for path in imported if path.is_relative_to("/tmp")}:
            (own / name).mkdir()
            self.run("mount", "--bind", f"/tmp/{name}", str(own / name))
        self.run("mount", "--rbind", str(own), "/tmp")
        self._temporary = own

    def plug(self, name: str, network: str, namespace: str) -> None:
        """Of a switch: a cable from its network to the one of this process."""
        port = f"{name}-{network[0]}"
        peer = ("peer", "name", network, "netns", namespace)  # not by `run`: in a host others' processes have no number
        enter = ("nsenter", "-t", str(self.init), "-n")
        subprocess.run([*enter, "ip", "link", "add", port, "type", "veth", *peer], check=True)
        self.run("ip", "link", "set", port, "master", network, "up")

    def set_cable(self, network: str, state: str) -> None:
        """Take its cable out of the network (down), or put it in again (up)."""
        assert self.switch is not None
        self.switch.run("ip", "link", "set", f"{self.name}-{network[0]}", state)

    def run(self, *command: str) -> None:
        subprocess.run([*self._enter, *command], check=True, stdout=subprocess.DEVNULL)

    def popen(self, command: Sequence[str], cwd: Path, **options: Any) -> Inside:
        """A process that runs there."""
        return Inside([*self._enter, "env", f"--chdir={cwd}", *command], **options)

    def processes(self) -> list[psutil.Process]:
        """Its living processes but the first."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        living = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                is_here = process.pid != self.init and os.readlink(f"/proc/{process.pid}/ns/pid") == own
                living += [process] * (is_here and is_alive(process))
        return living

    def kill(self) -> list[psutil.Process]:
        """Kill all its processes; return them."""
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return processes

    def close(self) -> None:
        """End it with all its processes."""
        self._holder.kill()
        self._holder.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)


class ClusterKiller(Killer):
    """A service on hosts, of which parts are killed or cut off.

    is_apart: servers and database have a host each. hosts: ends all of them.
    """

    def __init__(
        self, folder: Path, nodes: int, searches: int, seed: int, is_apart: bool, hosts: contextlib.ExitStack
    ) -> None:
        self._stack = hosts
        self.switch = self._host("switch", 0)
        names = ["one", "two", "database"] if is_apart else ["service"]
        both = tuple(NETWORKS)
        self.hosts = {name: self._host(name, 10 + index, both) for index, name in enumerate([*names, "head"])}
        self.nodes = [self._host(f"node{n}", 20 + n, ("cluster",)) for n in range(1, nodes + 1)]
        self.hosts |= {node.name: node for node in self.nodes}
        self.head, self.homes = self.hosts["head"], [self.hosts[name] for name in names[:2]]
        self.members = [self.head, *self.homes, *self.nodes]  # of the cluster
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for network, address in NETWORKS.items():  # this process has a cable, too
            self.switch.plug("root", network, str(os.getpid()))
            for words in (("address", "add", f"{address}.1/24", "dev", network), ("link", "set", network, "up")):
                subprocess.run(["ip", *words], check=True)
        database = self.hosts[names[-1]]
        self._start_postgres(database, folder / "postgres")
        url = f"postgresql://postgres@{NETWORKS['database']}.{10 + len(names) - 1}/postgres"
        super().__init__(folder, url, None, seed, log=True, real=False, standby=True)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(WRITES)
            for name in NOTED:
                connection.execute(
                    f"CREATE TRIGGER noted AFTER INSERT OR UPDATE ON {name} EXECUTE FUNCTION note_write()"
                )
        self.url, self.at_first, self.users = url, searches, dict[str, str]()
        self.cuts = list[
            tuple[str, float, float | None, float]
        ]()  # what, seconds, until a takeover, until all was whole
        self._threads = ThreadPoolExecutor()
        self.times: defaultdict[str, float] = defaultdict(float)  # device-seconds
        self._starts, self._is_over = 0, threading.Event()
        hosts.callback(self._is_over.set)
        self.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.variables |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
        self.variables |= {"RAY_enable_metrics_collection": "0", "TMPDIR": "/tmp"}
        self.log_file = (folder / "ray.log").open("a")
        self._start_ray(self.head)
        self._wait_for_ray(1)
        for host in self.members[1:]:
            self._start_ray(host)
        self._wait_for_ray(len(self.members))
        threading.Thread(target=self._keep_up, daemon=True).start()

    def _host(self, name: str, number: int, networks: Sequence[str] = ()) -> Host:
        host = Host(name, number, getattr(self, "switch", None), networks)
        self._stack.callback(host.close)
        return host

    def _start_postgres(self, host: Host, folder: Path) -> None:
        folder.mkdir()
        shutil.chown(folder, "postgres", "postgres")
        as_postgres = ("runuser", "-u", "postgres", "--", "env", f"--chdir={folder}", "PGDATA=data")
        options = f"-k {folder} -c listen_addresses=* -c fsync=off"
        for command in (
            f"{program('initdb')} -A trust -U postgres -E UTF8 --no-sync",
            "echo host all all 10.77.0.0/16 trust >> data/pg_hba.conf",
            f"{program('pg_ctl')} -o '{options}' -w -l log start",
        ):
            host.run(*as_postgres, "sh", "-c", command)

    def _start_ray(self, host: Host) -> None:
        """Start Ray on a host; it ends if one of its processes does."""
        where = ("--head", "--port=6379", "--include-dashboard=false") if host is self.head else ()
        where = where or (f"--address={self.head.address}:6379",)
        words = (*where, f"--node-ip-address={host.address}", f"--num-cpus={int(host in self.nodes)}", "--num-gpus=0")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]
        command += ["--disable-usage-stats", f"--object-store-memory={80 << 20}"]
        options = {"stdout": self.log_file, "stderr": subprocess.STDOUT, "env": self.variables}
        host.ray = host.popen(command, self.folder, **options)

    def _wait_for_ray(self, count: int) -> None:
        """Return once Ray runs on so many hosts."""
        until, log = time.monotonic() + 180, self.folder / "ray.log"
        while log.read_text().count("will now block") < count:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)

    def _keep_up(self) -> None:
        """Start Ray again where it has ended, as systemd would."""
        while not self._is_over.wait(1.0):
            for host in self.members:
                if host.is_up and host.ray is not None and host.ray.poll() is not None:
                    self._end_ray(host)
                    self._start_ray(host)

    def _end_ray(self, host: Host) -> None:
        for process in host.processes():
            with contextlib.suppress(psutil.Error):
                if "/ray/" in (words := " ".join(process.cmdline())) or words.startswith("ray::"):
                    process.kill()

    # The service ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._acting, self._waiting = self.homes[0], self.homes[-1]
        self.server = announced(self._begun(self._acting), self._folder(self._acting))
        self._token = self.server.token
        with self.server.http as http:
            for user in USERS:
                made = http.post("/tokens", json={"user": user, "role": "submitter"})
                self.users[user] = made.json()["secret"]
        until = time.monotonic() + 60
        while len(self.devices()) < len(self.nodes) and time.monotonic() < until:
            time.sleep(0.5)
        threading.Thread(target=self._watch, daemon=True).start()

    def _folder(self, host: Host) -> Path:
        folder = self.folder / host.name if len(self.homes) > 1 else self.folder
        folder.mkdir(exist_ok=True)
        return folder

    def _begun(self, host: Host, *words: str) -> subprocess.Popen[str]:
        self._starts += 1
        port = self.words[1]
        words += ("--host", host.address, "--port", port, "--database", self.url, "--behind-proxy", "10.77.0.1")
        words += ("--executor", "ray", "--address", f"{self.head.address}:6379")
        variables = {**self.variables, "PGAPPNAME": f"server {self._starts} on {host.name}"}
        return begun(self._folder(host), *words, variables=variables, popen=host.popen)

    def _stand_by(self) -> None:
        """Start a second server, of which `_announced` says when it acts; it is started again if it ends before."""
        self._second = self._begun(self._waiting, "--standby")
        self._announced = self._threads.submit(announced, self._second, self._folder(self._waiting), self._token)

    def take_over(self, since: float) -> None:
        """The second server acts: ask it from now on. What acted before is left alone."""
        self.server, self._announced = self._announced.result(), Future()
        while True:
            with contextlib.suppress(httpx2.TransportError), self.server.http as http:
                if http.get("/me").status_code == 200:
                    break
            time.sleep(0.02)
        self.counts.takeovers.append(time.monotonic() - since)
        self._acting, self._waiting = self._waiting, self._acting

    def devices(self) -> list[str]:
        """Names of the devices that the server has; raises TransportError."""
        with self.server.http as http:
            answer = http.get("/devices", timeout=5)
            return [each["name"] for each in answer.json()] if answer.status_code == 200 else []

    def _submit(self) -> None:
        """Send searches of all users and widths with a key each until a server has acknowledged them."""
        while not self._ending.is_set():
            with contextlib.suppress(httpx2.TransportError, OSError):
                key = next((key for key, known in self.submitted.items() if not known), f"key-{len(self.submitted)}")
                number = int(key.removeprefix("key-"))
                if number < self.at_first or self._open() < KEPT_OPEN:
                    self.submitted.setdefault(key, "")
                    body = {**REQUEST, "device": "cpu", "seed": number, "devices": 1 + number // 3 % len(self.nodes)}
                    with self.server.http as http:
                        http.headers["Authorization"] = f"Bearer {self.users[USERS[number % 3]]}"
                        answer = http.post("/searches", json=body, headers={"Idempotency-Key": key})
                    if answer.status_code in (200, 201):
                        self.submitted[key] = answer.json()["id"]
                    else:
                        print(answer.status_code, answer.text[:200], file=sys.stderr)
                    if number < self.at_first - 1:
                        continue
            self._ending.wait(0.5)

    def _open(self) -> int:
        return sum(number for state, number in self.store.count().items() if state in (QUEUED, RUNNING))

    def _watch(self) -> None:
        """Count device-seconds by what they were used for, each half second."""
        there, before = list[str](), time.monotonic()
        while not self._is_over.wait(0.5):
            is_acting = False
            with contextlib.suppress(Exception):
                there, is_acting = self.devices(), True
            now = time.monotonic()
            seconds, before = now - before, now
            gone = {f"cpu@{node.name}" for node in self.nodes if not node.is_up}
            with contextlib.suppress(Exception):
                searches = self._rows(
                    "SELECT state, owner, lent, coalesce((request->>'devices')::int, 1) FROM searches WHERE ended_at IS NULL"
                    " AND (not_before IS NULL OR not_before < now()) ORDER BY id"
                )
                lent = {name for state, _, names, _ in searches if state == RUNNING for name in names.split(JOIN)}
                idle = len({*there} - lent - gone)
                owners = [owner for state, owner, _, _ in searches if state == RUNNING]
                waiting = [
                    width
                    for state, owner, _, width in searches
                    if state == QUEUED and owners.count(owner) < MOST_OF_USER
                ]
                fits = any(width <= idle for width in waiting)
                kind = "nothing waited that fitted"
                if fits:
                    kind = "kept for an earlier search of more devices" if waiting[0] > idle else "others"
                    kind = kind if is_acting else "no server"
                self.times[kind] += idle * seconds
                self.times["lent"] += len(({*there} & lent) - gone) * seconds

    def _rows(self, query: str) -> list[Any]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(query).fetchall()  # type: ignore[call-overload]

    # Kills and cuts ---------------------------------------------------------------------------------------------

    def _kill(self, victim: str) -> None:
        since = time.monotonic()
        if victim == "server":
            for search in self.store.running():
                study = study_of(self.state, search.id)
                for name, fact in measured(study).items():
                    self._seen.setdefault(study, {}).setdefault(name, fact)
            below = with_descendants(psutil.Process(self.server.process.pid))
            self.server.process.kill()
            self.server.process.wait()
            self.take_over(since)
            self._stand_by()
        else:
            up = [node for node in self.nodes if node.is_up]
            if victim == "node" and not up:
                return
            host = self.chance.choice(up) if victim == "node" else self.head
            host.is_up = False
            below = host.kill()

            def again() -> None:
                self._start_ray(host)
                host.is_up = True

            threading.Timer(self.chance.uniform(*DOWN_S), again).start()
        while any(map(is_alive, below)) and time.monotonic() < since + ENDED_S:
            time.sleep(0.05)
        self.counts.left += [f"{item} of a killed {victim}" for item in below if is_alive(item)]
        self._count(victim, time.monotonic() - since)

    def kill(self, count: int) -> None:  # type: ignore[override]
        """Kill so many of the parts."""
        while self.counts.kills.total() < count:
            before, until = self._measured(), time.monotonic() + PATIENCE_S * (self.chance.random() < PATIENT)
            time.sleep(self.chance.expovariate(1 / GAP_S))
            while self._measured() <= before and time.monotonic() < until:
                time.sleep(0.2)
            self.counts.between += self._measured() > before
            self._kill(*self.chance.choices([*WEIGHTS], [*WEIGHTS.values()]))

    def cut(self, what: str) -> None:
        """Cut a network at a host for some seconds, and wait until one server acts, another one waits and all nodes are there."""
        time.sleep(self.chance.expovariate(1 / GAP_S))
        host, network = {
            "server": (self._acting, "database"),
            "standby": (self._waiting, "database"),
            "node": (self.chance.choice(self.nodes), "cluster"),
        }[what]
        seconds, before, since = self.chance.uniform(*CUT_S), len(self.counts.takeovers), time.monotonic()
        host.set_cable(network, "down")
        former, is_cut, whole_since = None, True, float("inf")
        while True:
            now = time.monotonic()
            if is_cut and now > since + seconds:
                host.set_cable(network, "up")
                is_cut = False
            if self._announced.done():
                if self._announced.exception() is None:
                    former = self.server.process
                    self.take_over(since)
                else:  # for example, it was started while its network was cut
                    self._stand_by()
            elif former is not None and former.poll() is not None:
                former = None
                self._stand_by()
            elif not is_cut and former is None:
                whole_since = min(whole_since, now) if self._is_whole() else float("inf")
                if now > whole_since + STABLE_S:  # a second server that has the lock may still be starting
                    break
            if now > since + seconds + SETTLED_S:
                self.counts.stuck.append(f"{SETTLED_S:.0f} s after a cut of {what}: {former}, {self._is_whole()}")
                break
            time.sleep(0.1)
        taken = self.counts.takeovers[before:]
        self.cuts.append((what, seconds, taken[0] if taken else None, max(0.0, whole_since - since - seconds)))
        print(f"cut {len(self.cuts)}: {self.cuts[-1]}", file=sys.stderr, flush=True)

    def _is_whole(self) -> bool:
        """True if a server acts and has all nodes."""
        with contextlib.suppress(httpx2.TransportError):
            return len(self.devices()) == len(self.nodes)
        return False

    def _check(self, search: Search) -> None:
        """Of the host that it ended on: others have what was measured there before."""
        states = [self._folder(host) / "state" / "autotune" for host in self.homes]
        self.state = min(states, key=lambda state: len(faults(self.store, state, search)))
        super()._check(search)

    # The end ----------------------------------------------------------------------------------------------------

    def finish(self) -> Counts:
        counts = super().finish()
        self._is_over.set()
        for host in self.members:
            if host.ray is not None:
                host.ray.terminate()
        until = time.monotonic() + GONE_S
        while (left := [*self._in_hosts(every=True)]) and time.monotonic() < until:
            time.sleep(0.2)
        counts.left += left
        return counts

    def _left(self) -> Iterator[str]:
        yield from self._in_hosts()

    def _in_hosts(self, every: bool = False) -> Iterator[str]:
        """Processes in the hosts but PostgreSQL's and, unless every one counts, Ray's own."""
        for host in self.hosts.values():
            for process in host.processes():
                with contextlib.suppress(psutil.Error):
                    words = " ".join(process.cmdline())
                    is_own = "autotune" in words or words.startswith("ray::Device")
                    if is_own or (every and "postgres" not in words):
                        yield f"{host.name}: process {process.pid}: {words[:200]}"

    def figures(self) -> list[str]:
        """Markdown: waiting times by user and by width, shares of the device time, and the order of the servers."""
        writes = self._rows("SELECT writer, epoch FROM writes WHERE writer LIKE 'server%' ORDER BY id")
        cuts = []
        for what in dict.fromkeys(what for what, *_ in self.cuts):
            own = [row[1:] for row in self.cuts if row[0] == what]
            taken = [taken for _, taken, _ in own if taken is not None]
            length = f"{min(row[0] for row in own):.0f} to {max(row[0] for row in own):.0f}"
            until_taken = f"{max(taken):.1f}" if taken else "–"
            cuts.append((what, len(own), length, len(taken), until_taken, f"{max(row[2] for row in own):.1f}"))
        waited = defaultdict[str, list[float]](list)
        for search in self._searches():
            if search.started_at is not None:
                for name in (search.owner, f"{search.request.get('devices', 1)} device(s)"):
                    waited[name].append((search.started_at - search.created_at).total_seconds())
        waits = [(name, len(own), f"{median(own):.0f}, {max(own):.0f}") for name, own in sorted(waited.items())]
        total = sum(self.times.values()) or 1.0
        times = [(name, f"{own:.0f}", f"{own / total:.1%}") for name, own in sorted(self.times.items())]
        return [
            *([*markdown(CUT_COLUMNS, cuts), ""] if cuts else []),
            *markdown(WAIT_COLUMNS, waits),
            "",
            *markdown(("device time", "s", "share"), times),
            "",
            f"{len(writes)} writes of {len({epoch for _, epoch in writes})} epochs: {order_of(writes)}.",
        ]


def order_of(writes: Sequence[tuple[str, int]]) -> str:
    """Fault in the order of (server, epoch) of all writes, if there is one: a second writer, or an epoch after a higher one."""
    last, writers = 0, dict[int, str]()
    for writer, epoch in writes:
        if writers.setdefault(epoch, writer) != writer or epoch < last:
            return f"FAULT: {writer} wrote in epoch {epoch} of {writers[epoch]}, after {last}"
        last = epoch
    if len({*writers.values()}) != len(writers):
        return "FAULT: a server had two epochs"
    return "each of one server, none after the first of a higher epoch"


def main() -> None:
    """Run, print the tables and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cuts", type=int, default=0)
    parser.add_argument("--cut", default="server,standby,node")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{os.getppid()}/ns/net"):  # a network of its own
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "tests.service.cluster_kills", *sys.argv[1:]])
    cuts = options.cut.split(",") * options.cuts
    random.Random(options.seed).shuffle(cuts)
    with tempfile.TemporaryDirectory(prefix="cluster-", dir="/var/tmp") as folder, contextlib.ExitStack() as hosts:
        Path(folder).chmod(0o755)
        with ClusterKiller(Path(folder), options.nodes, options.searches, options.seed, bool(cuts), hosts) as killer:
            killer.kill(options.kills)
            for what in cuts:
                killer.cut(what)
            counts, further = killer.finish(), killer.figures()
    lines = [*table(counts), "", *further]
    print("\n".join([*lines, *counts.faults]))
    if options.table:
        options.table.write_text("\n".join(lines) + "\n")
    sys.exit(1 if counts.faults or "FAULT" in "".join(further) else 0)


if __name__ == "__main__":
    main()
