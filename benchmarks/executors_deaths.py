"""Kill the parts of executors while they probe, and measure an order's way: python benchmarks/executors_deaths.py 3.

python benchmarks/executors_deaths.py COUNT [--only executor,node] [--orders 30] [--report FILE]: each part so many times: of two
local executors of one core each, and of two nodes of one core each of a Ray cluster on this machine. Looks only at processes that
it started itself.

    driver (this process, or one that is killed) ───────────────────> supervisor ─> host ─> child
                                                 ─ Ray ─> two actors ─> supervisor ─> host ─> child
"""

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from autotune.core.interval import quotient_interval  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.executors import Executor, ExecutorLost  # noqa: E402
from autotune.executors.local import LocalHost, local_executors, shares  # noqa: E402
from autotune.executors.ray import connected, ray_executors  # noqa: E402
from autotune.probe.order import Order, Timing  # noqa: E402
from autotune.probe.process.answers import read_answer  # noqa: E402
from autotune.probe.process.launcher import ProbeHost, on_cores  # noqa: E402
from autotune.probe.queries import read_workload  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.space.build import build_space  # noqa: E402

MARK = "AUTOTUNE_MARK"
"""Variable that every process below the cluster carries."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
LONG = Timing(timed_least=10**6, timed_most=10**6, seconds=300.0)
PAIRED = Timing(timed_least=10**6, timed_most=10**6, seconds=5.0)
GONE_S = 60.0
REQUEST = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick", devices=2)
LOCAL_DEATHS = ("local child", "local host", "local supervisor", "local driver")
DEATHS = (*LOCAL_DEATHS, "child", "executor", "node", "silence", "lease", "head", "driver")


@contextlib.contextmanager
def cluster_of_two(lease_s: float = 60.0) -> Iterator[tuple[Any, list[Any], str]]:
    """A head without cores, and two nodes with one each: (head, nodes, mark)."""
    mark, handler = secrets.token_hex(8), signal.getsignal(signal.SIGTERM)
    os.environ.update(SETTINGS | {MARK: mark})
    from ray.cluster_utils import Cluster as Machines

    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [machines.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    signal.signal(signal.SIGTERM, handler)  # Ray puts its own there
    try:
        yield machines, nodes, mark
    finally:
        with contextlib.suppress(Exception):
            machines.shutdown()
        os.environ.pop(MARK, None)


def marked(mark: str, word: str = "autotune.probe") -> list[psutil.Process]:
    """Processes of this mark with this word in their command line, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            own = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if own and process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                found.append(process)
    return found


def long_probe(executor: Executor, folder: Path, timing: Timing = LONG) -> Order:
    """An order that trains until it is ended, or with this timing."""
    space = build_space(REQUEST, executor.environment, executor.workload, {})
    live = LiveProbe(executor.host, executor.environment, executor.workload, {}, 4 << 30, lambda *_: folder)
    return live.order(space.baseline, "probe", folder, 300.0, timing=timing)


@dataclass(frozen=True)
class World:
    """Two executors of one core each, the processes of this mark, and what ends a part of the first."""

    executors: Sequence[Executor]
    mark: str
    kill: Callable[[str, Executor, Sequence[int]], None]

    def below(self, executor: Executor) -> list[int]:
        """Process ids of what carries orders out for an executor, the outermost first."""
        host = executor.host
        pid = psutil.Process(host._host().pid or 0).ppid() if isinstance(host, LocalHost) else host.facts["pid"]  # type: ignore[attr-defined]
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


@contextlib.contextmanager
def two_local() -> Iterator[World]:
    """Two local executors."""
    mark = os.environ.setdefault(MARK, secrets.token_hex(8))
    try:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(LocalHost(cores=shares(2, 1)[0]))
            yield World(local_executors(first, REQUEST, None, read_workload(first, REQUEST), stack), mark, kill_local)
    finally:
        os.environ.pop(MARK, None)


@contextlib.contextmanager
def two_of_a_cluster(lease_s: float) -> Iterator[World]:
    """Two executors of a Ray cluster."""
    with cluster_of_two() as (machines, nodes, mark), connected(machines.address, True) as cluster:
        cluster.lease_s = lease_s
        with ray_executors(cluster, REQUEST, 2) as executors:
            yield World(executors, mark, partial(kill, machines, nodes))


def wait_until(is_so: Callable[[], Any], seconds: float = GONE_S) -> float:
    """Seconds until it is so; infinity where it is not in time."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        if is_so():
            return time.monotonic() - begun
        time.sleep(0.05)
    return float("inf")


def death(which: str, folder: Path) -> dict[str, Any]:
    """What happens when this part dies while an executor probes: seconds until it is noticed, and until nothing runs."""
    if which.endswith(("driver", "head")):
        return search_death(which, folder)
    with two_local() if which in LOCAL_DEATHS else two_of_a_cluster(4.0 if which == "lease" else 60.0) as world:
        first, second = world.executors
        ended: list[Any] = []

        def run() -> None:
            try:
                ended.append(first.host.run(long_probe(first, folder / "long")))
            except BaseException as error:
                ended.append(error)

        first.host.scratch_folder()  # starts it
        before = {process.pid for process in marked(world.mark)}
        threading.Thread(target=run, daemon=True).start()
        wait_until(lambda: {process.pid for process in marked(world.mark)} - before)
        time.sleep(1.0)
        below = world.below(first)
        assert not ended, ended
        begun, nan = time.monotonic(), float("nan")
        world.kill(which, first, below)
        if which in LOCAL_DEATHS or which == "child":  # the order is begun again where it was

            def now() -> set[int]:
                with contextlib.suppress(psutil.Error):
                    return {pid for pid in world.below(first) if psutil.Process(pid).environ().get(MARK) == world.mark}
                return set()

            again = wait_until(lambda: len(now()) >= len(below) and len(now() - {*below}) > 0)
            assert not ended, ended
            below = [*below, *now()]
            first.host.abandon()
            gone = wait_until(lambda: not any(map(is_alive, below)))
            return {"noticed": again, "gone": gone, "redone": nan, "end": "begun again on the same device"}
        wait_until(lambda: bool(ended), 120.0)
        noticed = time.monotonic() - begun
        if which == "silence":
            os.kill(below[0], signal.SIGKILL)  # a stopped process cannot end itself
        gone = wait_until(lambda: not any(map(is_alive, below)))
        info = second.host.run(long_probe(second, folder / "again", Timing()))
        redone = time.monotonic() - begun
        assert info.codes == [0], info
        (end,) = ended
        text = str(end) if isinstance(end, ExecutorLost) else type(end).__name__
        return {"noticed": noticed, "gone": gone, "redone": redone, "end": text}


def is_alive(pid: int) -> bool:
    """Whether this process runs."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill_local(which: str, executor: Executor, below: Sequence[int]) -> None:
    """End this part of a local executor."""
    supervisor, host, *children = below
    assert executor.host._host().pid == host  # type: ignore[attr-defined]
    for pid in {"local child": children, "local host": [host], "local supervisor": [supervisor]}[which]:
        os.kill(pid, signal.SIGKILL)


def kill(machines: Any, nodes: Sequence[Any], which: str, executor: Executor, below: Sequence[int]) -> None:
    """End this part of a cluster."""
    match which:
        case "child":
            for pid in below[1:]:
                with contextlib.suppress(psutil.Error):
                    if not psutil.Process(pid).children() and "host" in " ".join(psutil.Process(pid).cmdline()):
                        os.kill(pid, signal.SIGKILL)
        case "executor":
            os.kill(below[0], signal.SIGKILL)
        case "node":
            raylet = psutil.Process(below[0]).ppid()
            (node,) = [node for node in nodes if raylet in pids_of(node)]
            machines.remove_node(node, allow_graceful=False)
        case "silence":
            os.kill(below[0], signal.SIGSTOP)
        case "lease":
            executor.host._left.set()  # type: ignore[attr-defined]  # no more pings


def pids_of(node: Any) -> set[int]:
    """Process ids of a node's own processes."""
    return {process.pid for _, process in node.live_processes()}


def search_death(which: str, folder: Path) -> dict[str, Any]:
    """SIGKILL of the process that searches, or of the cluster's head while it does."""
    is_local, mark = which in LOCAL_DEATHS, secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        machines: Any = None
        if is_local:
            address, processes = "local", 5  # two supervisors and hosts, and a child
        else:
            machines, _, mark = stack.enter_context(cluster_of_two())
            address, processes = machines.address, 7  # and two actors
        command = [sys.executable, __file__, "0", "--drive", address, "--folder", str(folder)]
        environment = os.environ | {MARK: mark}
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        wait_until((folder / "long" / "order.json").exists, 120.0)
        time.sleep(2.0)
        # Actors are parents.
        below = {
            pid for process in marked(mark) for pid in ((process.pid,) if is_local else (process.pid, process.ppid()))
        }
        assert len(below) >= processes, below
        begun = time.monotonic()
        if which == "head":
            machines.head_node.kill_gcs_server()
        else:
            driver.kill()
        said, _ = driver.communicate(timeout=180.0)
        noticed = time.monotonic() - begun
        gone = wait_until(lambda: not any(map(is_alive, below)))
        end = said.strip().splitlines()[-1] if said.strip() else "the next search goes on"
        return {"noticed": noticed, "gone": gone, "redone": float("nan"), "end": end}


def drive(address: str, folder: Path) -> None:
    """A search that only probes, until it is killed; says how it lost its executor."""
    with contextlib.ExitStack() as stack:
        if address == "local":
            world = stack.enter_context(two_local())
            first, second = world.executors
            second.host.scratch_folder()  # starts it
        else:
            cluster = stack.enter_context(connected(address, True))
            first, _ = stack.enter_context(ray_executors(cluster, REQUEST, 2))
        try:
            first.host.run(long_probe(first, folder / "long"))
        except ExecutorLost as lost:
            print(lost, flush=True)


def way_of_orders(count: int, folder: Path) -> list[str]:
    """Milliseconds of an order beside what its host counts, and speeds: in turn of a host here and of executors, local and Ray's.

    All on the same core.
    """
    ways: dict[str, list[float]] = {"here": [], "local": [], "ray": []}
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    with (
        cluster_of_two() as (machines, _, _),
        connected(machines.address, True) as cluster,
        ray_executors(cluster, REQUEST, 1) as (executor,),
        LocalHost(cores=[int(executor.name.rpartition(" ")[2])]) as local,
        ProbeHost() as here,
    ):
        hosts = {"here": here, "local": local, "ray": executor.host}
        here.close()
        with on_cores(local.cores):
            here.launch()
        for number in range(count):
            turn = list(hosts.items())
            for name, host in turn[number % 3 :] + turn[: number % 3]:
                order = long_probe(executor, folder / name, PAIRED)
                begun = time.monotonic()
                info = host.run(order)
                ways[name].append(1e3 * (time.monotonic() - begun - info.seconds))
                speed = read_answer(order, info).samples_per_second
                speeds[name].append(speed.value if speed else float("nan"))
    lines = ["| | order besides its host's count, ms | more than here, ms | speed / here |", "|---|---|---|---|"]
    for name, own in ways.items():
        ratio = quotient_interval(speeds[name], speeds["here"])
        more = median(mine - its for mine, its in zip(own, ways["here"], strict=True))
        lines.append(
            f"| {name} | {median(own):.1f} ({min(own):.1f} to {max(own):.1f}) | {more:.1f} | "
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) |"
        )
    return [*lines, f"\n{count} of each, in turn."]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--only", default=",".join(DEATHS))
    parser.add_argument("--orders", type=int, default=0)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--drive", default="")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.drive:
        drive(options.drive, options.folder)
        return
    lines = [
        "| part that dies | times | noticed (s) | all below gone (s) | order done elsewhere (s) | end |",
        "|---|---|---|---|---|---|",
    ]
    for which in options.only.split(",") if options.count else ():
        rows = []
        for _ in range(options.count):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(death(which, Path(folder)))
                print(which, rows[-1], flush=True)
        cells = [
            f"{median(row[name] for row in rows):.1f} (at most {max(row[name] for row in rows):.1f})"
            for name in ("noticed", "gone", "redone")
        ]
        lines.append(
            f"| {which} | {len(rows)} | {' | '.join(cells).replace('nan (at most nan)', '–')} | {rows[-1]['end'][:120]} |"
        )
    if options.orders:
        with tempfile.TemporaryDirectory() as folder:
            lines += ["", *way_of_orders(options.orders, Path(folder))]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
