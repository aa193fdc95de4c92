"""What `autotune serve` costs: memory, idle processor time, requests, events, and the searches that it runs.

python benchmarks/service.py: about six minutes on an idle machine, on the loopback and SQLite; prints a table and writes
it into reports/service_speed.md. Searches of the part on events are replayed; all others are real.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from machine import write_table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.service.records import Change  # noqa: E402
from autotune.service.store import Store  # noqa: E402
from autotune.service.tables import open_database, writing  # noqa: E402
from tests.service.searches import REQUEST, Replaying  # noqa: E402
from tests.service.servers import Server, serving  # noqa: E402

REAL = {"model": "bert-mini", "global_batch_size": 16, "sequence_length": 64, "n_trials": 1}
WORDS = (
    "bert-mini",
    "--global-batch-size",
    "16",
    "--sequence-length",
    "64",
    "--n-trials",
    "1",
)
REALLY = os.environ | {"PYTHONPATH": str(ROOT)}
ROUNDS = 6
READERS = 100
MOST_READERS = 250
"""Who read slower than the server sends: it lets 256 connections wait."""

SENT = 500
"""Events of a search that are sent to each reader."""

ANNA = {"user": "anna", "role": "viewer"}
SEARCHES = 10_000


def main() -> None:
    rows = [*requests(), *events(), *sending(), *searches()]
    lines = [
        "| what | goal | measured |",
        "| --- | --- | --- |",
        *(f"| {what} | {goal} | {got} |" for what, goal, got in rows),
    ]
    write_table(ROOT / "reports" / "service_speed.md", "What the service costs", lines)


def milliseconds(seconds: list[float]) -> str:
    """`12 ms median, 30 ms p99`."""
    ordered = sorted(seconds)
    middle, last = (1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    return f"{middle:.0f} ms median, {last:.0f} ms p99"


# Requests ---------------------------------------------------------------------------------------------------------


def requests() -> Iterator[tuple[str, str, str]]:
    with tempfile.TemporaryDirectory(prefix="service-") as folder:
        state = Path(folder, "state", "autotune")
        state.mkdir(mode=0o700, parents=True)
        engine = open_database(f"sqlite:///{state / 'service.db'}")
        store = Store(engine)
        for number in range(SEARCHES):
            search, _ = store.submit("anna", f"search {number}", REQUEST, most_of_user=SEARCHES, most=SEARCHES)
            store.cancel(search.id, now=True)
        engine.dispose()
        with serving(Path(folder), variables=REALLY) as server, server.http as client:
            process = psutil.Process(server.process.pid)
            time.sleep(5)
            used = sum(process.cpu_times()[:2])
            time.sleep(30)
            used = (sum(process.cpu_times()[:2]) - used) / 30
            yield "server, idle: memory", "150 MB", f"{process.memory_info().rss / 1e6:.0f} MB"
            yield "server, idle: of a core", "1 %", f"{used:.1%}"
            client.get("/searches")
            seconds = [_timed(client, "/searches", limit=100) for _ in range(300)]
            yield f"a page of 100 of {SEARCHES:,} searches", "50 ms p99", milliseconds(seconds)
            place = client.get("/searches", params={"limit": 1}).json()[0]["id"]
            rate = asyncio.run(_hammer(server, f"/api/v1/searches/{place}", 8.0))
            yield "status of a search, 8 connections, client on the same two cores", "800 / s", f"{rate:.0f} / s"
            seconds = []
            for number in range(100):
                key, begun = {"Idempotency-Key": f"{number}"}, time.perf_counter()
                client.post("/searches", json=dict(REQUEST), params={"dry_run": number % 2}, headers=key)
                seconds.append(time.perf_counter() - begun)
            yield "dry run", "–", milliseconds(seconds[1::2])
            yield "POST of a search that is queued", "–", milliseconds(seconds[::2])


def _timed(client: Any, path: str, **params: Any) -> float:
    begun = time.perf_counter()
    client.get(path, params=params).raise_for_status()
    return time.perf_counter() - begun


async def _hammer(server: Server, path: str, seconds: float) -> float:
    """Answers a second over connections that ask again as soon as they are answered."""
    end, answered = time.monotonic() + seconds, 0

    async def ask() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(*_address(server))
        while time.monotonic() < end:
            writer.write(_get(server, path, server.token))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            answered += 1
        writer.close()

    await asyncio.gather(*(ask() for _ in range(8)))
    return answered / seconds


def _address(server: Server) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rsplit(":", 1)[1])


def _get(server: Server, path: str, token: str, accept: str = "*/*") -> bytes:
    host = server.url.removeprefix("http://")
    head = (f"GET {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}", f"Accept: {accept}")
    return "\r\n".join([*head, "", ""]).encode()


# Events -----------------------------------------------------------------------------------------------------------


def events() -> Iterator[tuple[str, str, str]]:
    """From a measurement on disk to its event at each of the readers of a replayed search; the server's own load meanwhile."""
    with tempfile.TemporaryDirectory(prefix="service-") as folder:
        variables = Replaying(Path(folder, "site"), probe_s=0.3).environment
        with serving(Path(folder), variables=variables) as server, server.http as client:
            tokens = [client.post("/tokens", json=ANNA).json()["secret"] for _ in range(READERS // 10)]
            delays: list[float] = []
            process = psutil.Process(server.process.pid)
            for seed in range(3):
                search = server.submit({**REQUEST, "n_trials": 12, "seed": seed})
                begun, used = time.monotonic(), sum(process.cpu_times()[:2])
                arrivals = asyncio.run(_readers(server, search, tokens))
                load = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - begun)
                for reader in arrivals:
                    for number, at in reader.items():
                        probe = server.state / "searches" / search / "study" / "probes" / f"{number:04d}"
                        delays.append(at - (probe / "measurement.json").stat().st_mtime)
            shown = f"{milliseconds(delays)} ({len(delays)} events)"
            yield f"a measurement on disk to its event, {READERS} readers", "150 ms median, 500 ms p99", shown
            yield f"server, a replayed search and {READERS} readers: of a core", "–", f"{load:.0%}"


def sending() -> Iterator[tuple[str, str, str]]:
    """Events a second that the server sends to readers who begin at the first one, and its memory then."""
    with tempfile.TemporaryDirectory(prefix="service-") as folder:
        variables = Replaying(Path(folder, "site")).environment
        with serving(Path(folder), variables=variables) as server, server.http as client:
            search, store = server.submit(REQUEST), Store(open_database(f"sqlite:///{server.state / 'service.db'}"))
            server.when(search)
            kept = store.events(search, limit=5000)
            trial = next(event.body for event in kept if event.kind == "trial")
            with writing(store._engine) as connection:
                for number in range(SENT):
                    rows = [{"key": f"trial:{number + 100}", "kind": "trial", "body": trial | {"number": number + 100}}]
                    Change(connection).append(search, rows)
            tokens = [client.post("/tokens", json=ANNA).json()["secret"] for _ in range(READERS // 10)]
            for readers in (READERS, MOST_READERS):
                begun = time.monotonic()
                arrivals = asyncio.run(_readers(server, search, tokens, readers))
                seconds, count = time.monotonic() - begun, sum(map(len, arrivals))
                memory = psutil.Process(server.process.pid).memory_info().rss
                yield f"events to {readers} readers", "–", f"{count / seconds:,.0f} / s; {memory / 1e6:.0f} MB"


async def _readers(server: Server, search: str, tokens: list[str], count: int = READERS) -> list[dict[int, float]]:
    """Trial -> time of its event, for each reader."""

    async def read(token: str) -> dict[int, float]:
        reader, writer = await asyncio.open_connection(*_address(server), limit=2**20)
        writer.write(_get(server, f"/api/v1/searches/{search}/events", token, "text/event-stream"))
        times: dict[int, float] = {}
        kind = b""
        while (line := await reader.readline()) and line != b"0\r\n":  # the last chunk
            if line.startswith(b"event: "):
                kind = line[7:].strip()
            elif line.startswith(b"data: ") and kind == b"trial":
                times.setdefault(json.loads(line[6:])["number"], time.time())
        writer.close()
        return times

    return await asyncio.gather(*(read(token) for token in tokens for _ in range(count // len(tokens))))


# Searches ---------------------------------------------------------------------------------------------------------


def searches() -> Iterator[tuple[str, str, str]]:
    """The same real search by the command and by the service, in turns: time to its first probe, and its baseline's speed."""
    with tempfile.TemporaryDirectory(prefix="service-") as folder:
        starts: dict[str, list[float]] = {"command": [], "service": []}
        speeds: dict[str, list[float]] = {"command": [], "service": []}
        with serving(Path(folder), variables=REALLY) as server:
            process, shares = psutil.Process(server.process.pid), []
            for turn in range(ROUNDS + 1):
                for kind in ("command", "service") if turn % 2 else ("service", "command"):
                    begun, used = time.time(), sum(process.cpu_times()[:2])
                    study = _by_command(Path(folder), server, turn) if kind == "command" else _by_service(server)
                    if kind == "service":
                        shares.append((sum(process.cpu_times()[:2]) - used) / (time.time() - begun))
                    if turn:  # the first fills the caches
                        starts[kind].append((study / "probes" / "0000" / "order.json").stat().st_mtime - begun)
                        speeds[kind].append(_speed(study))
        waits = [statistics.median(starts[kind]) for kind in ("command", "service")]
        yield (
            "POST to the first probe's order, over the command's own time",
            "1 s",
            f"{waits[1] - waits[0]:+.2f} s ({waits[0]:.1f} s by the command; medians of {ROUNDS})",
        )
        yield "server, with one real search: of a core", "3 %", f"{statistics.median(shares):.1%}"
        ratios = [service / command for service, command in zip(speeds["service"], speeds["command"], strict=True)]
        mean, error = statistics.mean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5
        half = 2.571 * error  # Student's t for five degrees of freedom, 97.5 %
        holds = "holds" if mean - half <= 1 <= mean + half else "misses"
        yield (
            "speed in the service against the command's, paired",
            "95 % interval holds 1",
            f"{mean:.3f} ({mean - half:.3f} to {mean + half:.3f}): {holds} 1",
        )


def _by_command(folder: Path, server: Server, turn: int) -> Path:
    reports = folder / f"reports-{turn}"
    command = [
        sys.executable,
        "-m",
        "autotune",
        "search",
        *WORDS,
        "--no-history",
        "--quiet",
        "--output-dir",
        str(reports),
    ]
    variables = REALLY | {"XDG_CACHE_HOME": str(server.state / "cache")}
    subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return next(reports.glob("*/request.json")).parent


def _by_service(server: Server) -> Path:
    search = server.submit({**REAL, "no_history": True})
    with server.http as client, client.stream("GET", f"/searches/{search}/events") as stream:
        for _ in stream.iter_lines():
            pass
    return server.state / "searches" / search / "study"


def _speed(study: Path) -> float:
    """Samples / second of the only trial's probe."""
    steps = json.loads((study / "probes" / "0000" / "measurement.json").read_text())["steps"]
    return float(sum(step["samples"] for step in steps) / sum(step["seconds"] for step in steps))


if __name__ == "__main__":
    main()
