"""Two one-core executors on a Ray cluster of this machine: what they answer, what they carry, and what remains of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.core import InvalidRequest, Outcome, read_json
from autotune.core.errors import DevicesAway
from autotune.core.request import tuning_request
from autotune.executors import Executor, ExecutorLost
from autotune.executors.ray import connected, ray_executors
from autotune.probe.order import CHILD_ANSWER, LOG, Order, Timing
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.runner import LiveProbe
from autotune.space.build import build_space

ray = pytest.importorskip("ray", reason="ray is not installed: its extra is not the core's")
# Alone: both cores are lent to the cluster's nodes. The warnings are Ray's own, of its processes too.
pytestmark = [pytest.mark.nightly, pytest.mark.alone, pytest.mark.filterwarnings("ignore")]

from tests.executors.cluster import cluster_of_two  # noqa: E402
from tests.probe.processes import alive, becomes_true  # noqa: E402

REQUEST = tuning_request("bert-mini", 2, sequence_length=8, device="cpu", space="quick", devices=2)
SHORT = Timing(untimed_least=1, untimed_most=1, timed_least=2, timed_most=2)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    before = dict(os.environ)
    os.environ["RAY_AUTH_TOKEN"] = "s3cret-of-the-cluster"
    with cluster_of_two() as (machines, _):
        yield machines.address
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def two(address: str) -> Iterator[list[Executor]]:
    with connected(address, allow_unauthenticated=True) as cluster, ray_executors(cluster, REQUEST, 2) as executors:
        yield executors


def order(executor: Executor, folder: Path) -> Order:
    space = build_space(REQUEST, executor.environment, executor.workload, {})
    live = LiveProbe(executor.host, executor.environment, executor.workload, {}, 4 << 30, lambda *_: folder)
    return live.order(space.baseline, "probe", folder, 300.0, timing=SHORT)


def below(executor: Executor) -> list[int]:
    pid = executor.host.facts["pid"]  # type: ignore[attr-defined]
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def answer(order: Order) -> dict[str, Any]:
    data: dict[str, Any] = read_json(Path(order.folder) / CHILD_ANSWER)
    return data


def test_an_executor_answers_as_a_host_here_does_and_knows_no_secret(two: list[Executor], tmp_path: Path) -> None:
    first, second = two
    orders = [order(first, tmp_path / "first"), order(second, tmp_path / "second"), order(first, tmp_path / "here")]
    infos = [first.host.run(orders[0]), second.host.run(orders[1])]
    with ProbeHost() as host:
        infos.append(host.run(orders[2]))
    assert [info.ended for info in infos] == ["exited"] * 3
    assert {answer(each)["outcome"] for each in orders} == {Outcome.COMPLETED.value}
    assert answer(orders[0])["settings"] == answer(orders[1])["settings"] == answer(orders[2])["settings"]
    assert (tmp_path / "first" / LOG).exists()
    assert first.hardware == second.hardware
    assert first.hardware["niceness"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert first.hardware["threads"] == "1"
    cores = [psutil.Process(below(each)[0]).cpu_affinity() for each in two]
    assert sorted(map(len, cores)) == [1, 1]
    assert cores[0] != cores[1]
    for pid in below(first)[1:]:
        assert "RAY_AUTH_TOKEN" not in psutil.Process(pid).environ()


def test_a_killed_executor_is_lost_at_once_leaves_nothing_and_is_replaced(two: list[Executor], tmp_path: Path) -> None:
    first, _ = two
    processes = below(first)
    os.kill(processes[0], signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(ExecutorLost, match="ActorDiedError"):
        first.host.run(order(first, tmp_path))
    assert time.monotonic() - begun < 3
    assert not (tmp_path / CHILD_ANSWER).exists()
    assert becomes_true(lambda: not any(map(alive, processes)), 10)
    assert first.host.restart()
    assert first.host.run(order(first, tmp_path)).codes == [0]


def test_an_executor_leaves_when_nobody_pings_it(address: str) -> None:
    with connected(address, allow_unauthenticated=True) as cluster:
        cluster.lease_s = 2.0
        with ray_executors(cluster, REQUEST, 1) as (executor,):
            processes = below(executor)
            executor.host._left.set()  # type: ignore[attr-defined]
            assert becomes_true(lambda: not any(map(alive, processes)), 20)


def test_more_devices_than_the_cluster_has_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.executors.ray.DEVICES_S", 15.0)
    with (
        connected(address, allow_unauthenticated=True) as cluster,
        pytest.raises(DevicesAway, match="2 of 3 devices"),
        ray_executors(cluster, REQUEST, 3),
    ):
        pass


def test_a_cluster_without_authentication_is_refused_unless_it_is_accepted(address: str) -> None:
    with (
        connected(address) as cluster,
        pytest.raises(InvalidRequest, match="RAY_AUTH_MODE=token"),
        ray_executors(cluster, REQUEST, 1),
    ):
        pass


@pytest.mark.parametrize("name", ["", "auto", "ray://head:10001"])
def test_a_cluster_is_named_by_host_and_port(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InvalidRequest, match="RAY_ADDRESS=HOST:PORT"), connected(name):
        pass


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:no-port"])
def test_an_address_where_nothing_listens_is_refused_at_once(address: str) -> None:
    with pytest.raises(DevicesAway, match="Nothing answers"), connected(address):
        pass


@pytest.mark.slow
def test_the_command_searches_on_two_devices_of_the_cluster(address: str, tmp_path: Path) -> None:
    words = "bert-mini --global-batch-size 2 --sequence-length 8 --device cpu --devices 2 --executor ray --n-trials 3"
    words += " --allow-unauthenticated --search-space quick --no-history --fix precision=fp32 --timeout 200s --json"
    command = [sys.executable, "-m", "autotune", "search", *words.split(), "--output-dir", tmp_path]
    variables = os.environ | {"RAY_ADDRESS": address}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = Path(json.loads(done.stdout)["folder"])
    measured = [read_json(path) for path in folder.glob("probes/*/measurement.json")]
    assert len(measured) >= 3
    assert len({each["device"] for each in measured}) == 2


def test_a_device_is_taken_from_the_node_that_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(address, allow_unauthenticated=True) as cluster:
        nodes = [node["NodeID"] for node in cluster.ray.nodes() if node["Resources"].get("CPU")]

        def cores_free() -> dict[str, float]:
            free = ray._private.state.available_resources_per_node()
            return {node: free[node].get("CPU", 0.0) for node in nodes}

        for node in nodes:
            monkeypatch.setenv("AUTOTUNE_NODES", node)
            assert becomes_true(lambda: cores_free() == dict.fromkeys(nodes, 1.0), 60)
            with ray_executors(cluster, REQUEST, 1):
                taken = dict.fromkeys(nodes, 1.0) | {node: 0.0}
                assert becomes_true(lambda taken=taken: cores_free() == taken, 60)
