"""Kill the parts of a Ray cluster while its executors probe, and measure an order's way: python benchmarks/executors_ray.py 3.

python benchmarks/executors_ray.py COUNT [--only executor,node] [--orders 30] [--report reports/executors.md]: each part so many
times, on two nodes of one core each on this machine. Looks only at processes that it started itself.

    driver (this process, or one that is killed) ─ Ray ─> two actors ─> supervisor ─> host ─> child
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
from collections.abc import Callable, Iterator
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
from autotune.executors.ray import connected, ray_executors  # noqa: E402
from autotune.probe.order import Order, Timing  # noqa: E402
from autotune.probe.process.answers import read_answer  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
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
DEATHS = ("child", "executor", "node", "silence", "lease", "head", "driver")


@contextlib.contextmanager
def cluster_of_two(lease_s: float = 60.0) -> Iterator[tuple[Any, list[Any], str]]:
    """A head without cores, and two nodes with one each: (head, nodes, mark)."""
    mark = secrets.token_hex(8)
    os.environ.update(SETTINGS | {MARK: mark})
    from ray.cluster_utils import Cluster as Machines

    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [machines.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
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
    request = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick")
    space = build_space(request, executor.environment, executor.workload, {})
    live = LiveProbe(executor.host, executor.environment, executor.workload, {}, 4 << 30, lambda *_: folder)
    return live.order(space.baseline, "probe", folder, 300.0, timing=timing)


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
    if which in ("driver", "head"):
        return search_death(which, folder)
    lease_s = 4.0 if which == "lease" else 60.0
    with cluster_of_two() as (machines, nodes, mark), connected(machines.address, True) as cluster:
        cluster.lease_s = lease_s
        request = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick")
        with ray_executors(cluster, request, 2) as (first, second):
            ended: list[Any] = []

            def run() -> None:
                try:
                    ended.append(first.host.run(long_probe(first, folder / "long")))
                except BaseException as error:
                    ended.append(error)

            thread = threading.Thread(target=run, daemon=True)
            before = {process.pid for process in marked(mark)}
            thread.start()
            wait_until(lambda: {process.pid for process in marked(mark)} - before)
            time.sleep(1.0)
            pid = first.host.facts["pid"]
            below = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
            assert not ended, ended
            begun = time.monotonic()
            kill(which, first, machines, nodes, below)
            if which == "child":  # its host begins the order again
                again = wait_until(lambda: {child.pid for child in psutil.Process(pid).children(True)} - set(below))
                assert not ended, ended
                first.host.abandon()  # type: ignore[attr-defined]
                wait_until(lambda: not any(map(is_alive, below)))
                return {
                    "noticed": again,
                    "gone": float("nan"),
                    "redone": float("nan"),
                    "end": "begun again by its host",
                }
            wait_until(lambda: bool(ended), 120.0)
            noticed = time.monotonic() - begun
            if which == "silence":
                os.kill(pid, signal.SIGKILL)  # a stopped process cannot end itself
            gone = wait_until(lambda: not any(map(is_alive, below)))
            redone = float("nan")
            if which in ("executor", "node", "silence", "lease"):
                account = second.host.run(long_probe(second, folder / "again", Timing()))
                redone = time.monotonic() - begun
                assert account["codes"] == [0], account
            end = ended[0] if ended else None
            text = (
                str(end)
                if isinstance(end, ExecutorLost)
                else str(type(end).__name__ if isinstance(end, BaseException) else end)
            )
            return {"noticed": noticed, "gone": gone, "redone": redone, "end": text}


def is_alive(pid: int) -> bool:
    """Whether this process runs."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill(which: str, executor: Executor, machines: Any, nodes: list[Any], below: list[int]) -> None:
    """End this part."""
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
            executor.host._left.set()  # no more pings


def pids_of(node: Any) -> set[int]:
    """Process ids of a node's own processes."""
    return {process.pid for _, process in node.live_processes()}


def search_death(which: str, folder: Path) -> dict[str, Any]:
    """SIGKILL of the process that searches, or of the cluster's head while it does."""
    with cluster_of_two() as (machines, _, mark):
        command = [sys.executable, __file__, "0", "--drive", machines.address, "--folder", str(folder)]
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        wait_until((folder / "long" / "order.json").exists, 120.0)
        time.sleep(2.0)
        below = {pid for process in marked(mark) for pid in (process.pid, process.ppid())}  # the actors are parents
        assert len(below) >= 7, below  # two actors, their supervisors and hosts, and a child
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
    request = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick")
    with connected(address, True) as cluster, ray_executors(cluster, request, 2) as (first, _):
        try:
            first.host.run(long_probe(first, folder / "long"))
        except ExecutorLost as lost:
            print(lost, flush=True)


def way_of_orders(count: int, folder: Path) -> dict[str, list[float]]:
    """Milliseconds of an order beside what its host counts, in turn by a host here and by an executor."""
    request = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick")
    ways: dict[str, list[float]] = {"here": [], "ray": []}
    speeds: dict[str, list[float]] = {"here": [], "ray": []}
    with (
        cluster_of_two() as (machines, _, _),
        connected(machines.address, True) as cluster,
        ray_executors(cluster, request, 1) as (executor,),
        ProbeHost() as local,
    ):
        (core,) = [int(word) for word in executor.name.rpartition(" ")[2].split(",")]
        os.sched_setaffinity(0, {core})
        local.close()
        local.launch()
        for number in range(count):
            hosts = {"here": local, "ray": executor.host}
            for name, host in list(hosts.items())[:: 1 if number % 2 else -1]:
                order = long_probe(executor, folder / name, PAIRED)
                begun = time.monotonic()
                account = host.run(order)
                ways[name].append(1e3 * (time.monotonic() - begun - account["seconds"]))
                speed = read_answer(order, account).samples_per_second
                speeds[name].append(speed.value if speed else float("nan"))
    ratio = quotient_interval(speeds["ray"], speeds["here"])
    print(f"speed, ray / here: {ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f}), {count} pairs", flush=True)
    return ways | {"ratios": [there / here for there, here in zip(speeds["ray"], speeds["here"], strict=True)]}


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
            ways = way_of_orders(options.orders, Path(folder))
        for name, values in ways.items():
            lines.append(
                f"\n{name}: median {median(values):.4g}, {min(values):.4g} to {max(values):.4g}, n = {len(values)}"
            )
    text = "\n".join(lines) + "\n"
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
