"""A Ray cluster of this machine, and what runs below it."""

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import psutil

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


@contextlib.contextmanager
def cluster_of_two() -> Iterator[tuple[Any, list[Any]]]:
    """A head without cores, and two nodes with one each: (machines, nodes)."""
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.update(SETTINGS | {MARK: secrets.token_hex(8)})
    from ray.cluster_utils import Cluster as Machines

    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    machines = Machines(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    nodes = [machines.add_node(num_cpus=1, object_store_memory=80 << 20) for _ in range(2)]
    signal.signal(signal.SIGTERM, handler)  # Ray puts its own there
    try:
        yield machines, nodes
    finally:
        with contextlib.suppress(Exception):
            machines.shutdown()
        os.environ.pop(MARK, None)


def marked(mark: str, word: str) -> list[psutil.Process]:
    """Processes of this mark with this word in their command line, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            own = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if own and process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                found.append(process)
    return found
