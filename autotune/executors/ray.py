"""Executors on a Ray cluster: an actor for each device, and its host as the search sees it.

    study loop -- RayHost.run(order) ==Ray==> DeviceActor.run: own host, own folder -- fork --> children
                  ExitInfo, answers, log <====

Ray carries orders and files and ends processes; nothing is kept in it. The only module that imports it.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.core import InvalidRequest, TuningRequest
from autotune.core.errors import AutotuneError, DevicesAway, SearchFailed
from autotune.executors import Executor, ExecutorLost
from autotune.executors.compatibility import check_same_hardware
from autotune.executors.ray_host import DEVICES_S, Cluster, RayHost


@contextlib.contextmanager
def connected(address: str = "", allow_unauthenticated: bool = False) -> Iterator[Cluster]:
    """The cluster at this address, by default RAY_ADDRESS.

    Raises InvalidRequest if it cannot be used, DevicesAway if it does not answer.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray import init  # a folder of that name can be imported too
    except ImportError:
        raise InvalidRequest("Ray is not installed.", "pip install 'hf-autotune[ray]'") from None
    address = address or os.environ.get("RAY_ADDRESS", "")
    if ":" not in address or "://" in address:
        raise InvalidRequest(
            f"{address!r} is not the address of a Ray cluster." if address else "No Ray cluster is named.",
            "Run on a node of the cluster, with RAY_ADDRESS=HOST:PORT.",
        )
    cluster = Cluster(ray, address, allow_unauthenticated)
    if not cluster.is_there():  # Ray tries again for minutes
        raise DevicesAway(f"Nothing answers at RAY_ADDRESS={address}.", "Start a cluster there with `ray start`.")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        init(address=address, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and errors of its own
        raise InvalidRequest(
            f"No Ray cluster can be used at {address}: {str(error).strip().partition(chr(10))[0]}",
            "Start one there with `ray start`, and see that RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH are the cluster's.",
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray puts its own there
    try:
        yield cluster
    finally:
        ray.shutdown()


@contextlib.contextmanager
def on_cluster(request: TuningRequest, objects: bytes = b"") -> Iterator[list[Executor]]:
    """The devices of the cluster at RAY_ADDRESS that this request wants: GPUs if there are any, unless it wants a CPU.

    AUTOTUNE_NODES: ids of nodes, of a node for each device, which are tried first. Raises InvalidRequest and DevicesAway as
    `connected` and `ray_executors` do.
    """
    with connected(allow_unauthenticated=request.allow_unauthenticated) as cluster:
        nodes = [node["Resources"] for node in cluster.ray.nodes() if node["Alive"]]
        cards = sum(int(node.get("GPU", 0)) for node in nodes)
        device = request.device if request.device != "auto" else "cuda" if cards else "cpu"
        if request.devices == "all" and (device == "cpu" or not cards):
            what = "--devices all is of GPUs" if cards else "The cluster has no GPUs"
            raise InvalidRequest(f"{what}.", "Say how many devices share the CPUs, as --device cpu --devices 2.")
        count = cards if request.devices == "all" else int(request.devices)
        each = request.cores_per_device or most_cores(nodes, count, device == "cuda")
        with ray_executors(cluster, replace(request, device=device), count, each, objects) as executors:
            yield executors


def most_cores(nodes: Sequence[Mapping[str, float]], devices: int, of_gpus: bool) -> int:
    """Largest number of cores per device such that n devices fit, each on a single node. nodes: their `CPU` and `GPU`."""

    def fit(cores: int) -> int:
        return sum(int(min(node.get("CPU", 0) // cores, node.get("GPU", 0) if of_gpus else devices)) for node in nodes)

    most = int(max((node.get("CPU", 0) for node in nodes), default=0))
    return next((cores for cores in range(most, 0, -1) if fit(cores) >= devices), 1)


@contextlib.contextmanager
def ray_executors(
    cluster: Cluster, request: TuningRequest, devices: int, cores: int = 1, objects: bytes = b""
) -> Iterator[list[Executor]]:
    """n devices of the cluster, with their environments and data.

    One that is lost while it reads model and data is left out. Raises DevicesAway if there are fewer at the start,
    InvalidRequest if one differs from the first, SearchFailed if all were lost.
    """
    nodes = [*filter(None, os.environ.get("AUTOTUNE_NODES", "").split(",")), *[""] * devices]
    hosts = [RayHost(cluster, objects, request.device, cores, node) for node in nodes[:devices]]
    try:
        for host in hosts:
            host.launch()
        until = time.monotonic() + DEVICES_S
        for index, host in enumerate(hosts):
            try:
                host.start(max(1.0, until - time.monotonic()))
            except ExecutorLost as error:
                advice = "Ask for fewer devices, or fewer --cores-per-device."
                raise DevicesAway(f"The cluster has {index} of {devices} devices free: {error}.", advice) from None
        executors, lost = [], ""
        for host in hosts:
            try:
                environment, workload = host.read(request)
            except ExecutorLost as error:
                lost = str(error)
                continue
            used = (lambda: None) if environment.is_cpu else host.used
            hardware = host.facts["hardware"]
            executors.append(Executor(host.facts["name"], host, environment, workload, hardware, used))
        if not executors:
            message = f"All {devices} device(s) of the cluster were lost while they read model and data: {lost}."
            raise SearchFailed(message, "See the logs of Ray, then run the same command again.")
        check_same_hardware(executors)
        yield executors
    finally:
        threads = [threading.Thread(target=host.close) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


NODES_S, READ_S = 2.0, 8.0
"""Seconds between reports of `report_nodes`, and for which nodes are asked if they can read a path."""


def report_nodes(address: str, allow_unauthenticated: bool) -> None:
    """Print the nodes of a cluster and what is free of them, a JSON line each time, until standard input ends; or the error.

    Each line of standard input is a path as JSON, for which the nodes that can read it are printed.
    """
    try:
        with connected(address, allow_unauthenticated) as cluster:
            from ray._private.state import available_resources_per_node

            while True:
                free = available_resources_per_node()
                nodes = [_report(node, free.get(node["NodeID"], {})) for node in cluster.ray.nodes() if node["Alive"]]
                print(json.dumps({"nodes": nodes}), flush=True)
                if select.select([sys.stdin], [], [], NODES_S)[0]:
                    if not (lines := os.read(sys.stdin.fileno(), 2**16).splitlines()):
                        return
                    for path in map(json.loads, lines):
                        print(json.dumps({"path": path, "readers": _readers(cluster.ray, path)}), flush=True)
    except AutotuneError as error:
        print(json.dumps({"error": (error.message, error.advice)}), flush=True)


def _readers(ray: Any, path: str) -> list[str]:
    """Ids of the nodes that can read this file or folder, and say so in time."""
    affinity, readers = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy, []
    task = ray.remote(num_cpus=0, max_retries=0)(lambda: os.access(path, os.R_OK))
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    answers = [task.options(scheduling_strategy=affinity(node, soft=False)).remote() for node in nodes]
    in_time, _ = ray.wait(answers, num_returns=len(answers), timeout=READ_S)
    for node, answer in zip(nodes, answers, strict=True):
        with contextlib.suppress(Exception):  # any error of Ray is not an answer
            readers += [node] * (answer in in_time and ray.get(answer))
    return readers


def _report(node: Mapping[str, Any], free: Mapping[str, float]) -> dict[str, Any]:
    """The fields of `autotune.service.cluster.Node`."""
    total, kind = node["Resources"], "accelerator_type:"
    cards = [name.removeprefix(kind) for name in total if name.startswith(kind)]
    return {
        "id": node["NodeID"],
        "name": node["NodeManagerHostname"],
        "card": cards[0] if cards else "GPU",
        "cpus": int(total.get("CPU", 0)),
        "gpus": int(total.get("GPU", 0)),
        "free_cpus": int(free.get("CPU", 0)),
        "free_gpus": int(free.get("GPU", 0)),
    }


if __name__ == "__main__":
    report_nodes(sys.argv[1], "--allow-unauthenticated" in sys.argv)
