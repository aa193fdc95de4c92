"""The devices of a Ray cluster: what is lent of nodes that come and go, and a real search on a real cluster of this machine."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune.core import InvalidRequest
from autotune.service import cluster
from autotune.service.cluster import ClusterDevices, Node, devices_of
from autotune.service.devices import check_devices
from autotune.service.roots import Roots
from tests.probe.processes import becomes_true
from tests.service.application import Service, make_app
from tests.service.servers import serving

REQUEST: dict[str, Any] = {"model": "bert-mini", "global_batch_size": 2, "sequence_length": 8, "space": "quick"}
REQUEST |= {"device": "cpu", "n_trials": 3, "only": {"precision": ["fp32"]}, "timeout": "120s", "no_history": True}
GPUS = Node("a1", "big", "H100", 16, 2, 16, 2)
CPUS = Node("b1", "small", "GPU", 4, 0, 4, 0)


def test_a_device_is_a_gpu_or_a_node_without_one_and_nodes_of_one_name_are_told_apart() -> None:
    assert devices_of([GPUS, CPUS], ["cuda"]) == {"cuda:0@big": GPUS, "cuda:1@big": GPUS}
    assert devices_of([GPUS, CPUS], ["cuda", "cpu"]).keys() == {"cuda:0@big", "cuda:1@big", "cpu@small"}
    twins = [Node(f"{name}23456789", "small", "GPU", 4, 0, 4, 0) for name in "ba"]
    assert [*devices_of(twins, ["cpu"])] == ["cpu@small-a23456", "cpu@small-b23456"]


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> ClusterDevices:
    """Of a cluster that is played: `_take` gets what it reports."""

    def follow(self: ClusterDevices) -> None:
        report(self, GPUS, CPUS)

    monkeypatch.setattr(ClusterDevices, "_follow", follow)
    return ClusterDevices("head:6379", ["cuda", "cpu"])


def report(devices: ClusterDevices, *nodes: Node) -> None:
    devices._take({"nodes": [vars(node) for node in nodes]})


def test_what_is_lent_here_or_used_by_others_is_not_free_and_what_is_gone_can_be_waited_for(
    lent: ClusterDevices,
) -> None:
    assert lent.free([]) == ["cuda:0@big", "cuda:1@big", "cpu@small"]
    assert lent.free(["cuda:0@big", None]) == ["cuda:1@big", "cpu@small"]
    report(lent, Node("a1", "big", "H100", 16, 2, 8, 1), Node("b1", "small", "GPU", 4, 0, 3, 0))
    assert lent.free([]) == ["cuda:0@big"]
    assert lent.free(["cuda:0@big"]) == ["cuda:1@big"]
    report(lent, Node("a1", "big", "H100", 16, 2, 7, 2))  # others use its cores
    assert lent.free([]) == []
    report(lent, CPUS)
    assert lent.free([]) == [*lent.names] == ["cpu@small"]
    assert lent.cards == {"cuda:0@big": "H100", "cuda:1@big": "H100", "cpu@small": "CPU, 4 cores"}
    check_devices({"device": "cuda", "devices": 2, "card": "h100"}, lent.cards)
    lent._seen = dict.fromkeys(lent._seen, -cluster.GONE_S)
    report(lent, CPUS)
    assert [*lent.cards] == ["cpu@small"]


def test_the_queue_is_looked_at_once_other_devices_are_free(lent: ClusterDevices) -> None:
    """What a search that has ended used is free when Ray says so, some seconds later."""
    calls: list[list[str]] = []
    lent.on_change = lambda: calls.append(lent.free([]))
    for free in (0, 0, 4):
        report(lent, Node("b1", "small", "GPU", 4, 0, free, 0))
    assert calls == [[], ["cpu@small"]]


def test_a_search_is_sent_to_its_nodes_with_its_share_of_the_cores(lent: ClusterDevices) -> None:
    options = {"device": "cuda", "devices": 2, "executor": "ray", "allow_unauthenticated": False}
    assert lent.options("cuda:0@big,cuda:1@big", {}) == options | {"cores_per_device": 8}
    assert lent.options("cuda:0@big,cuda:1@big", {"cores_per_device": 2}) == options | {"cores_per_device": 2}
    assert lent.options("cpu@small", {})["device"] == "cpu"
    variables = lent.variables("cuda:0@big,cuda:1@big")
    assert (variables["RAY_ADDRESS"], variables["AUTOTUNE_NODES"]) == ("head:6379", "a1,a1")


class Reporter:
    """A process that answers each path with the nodes that can read it; it says nothing of an unknown path."""

    def __init__(self, devices: ClusterDevices, readers: dict[str, list[str]]) -> None:
        self.devices, self.readers, self.stdin = devices, readers, self

    def write(self, line: bytes) -> None:
        path = json.loads(line)
        if path in self.readers:
            self.devices._take({"path": path, "readers": self.readers[path]})

    def flush(self) -> None:
        """The answer is there."""


def test_nodes_say_what_they_cannot_read_and_silent_ones_count_as_such(
    lent: ClusterDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "READ_S", 0.2)
    assert lent.unreadable("/data") == ["big", "small"], "the process has not been started"
    lent._process = Reporter(lent, {"/data": ["a1", "b1", "c1"], "/part": ["a1"], "/none": []})  # type: ignore[assignment]
    assert lent.unreadable("/data") == []
    assert lent.unreadable("/part") == ["small"]
    assert lent.unreadable("/none") == lent.unreadable("/silent") == ["big", "small"]
    report(lent, GPUS)
    assert lent.unreadable("/part") == [], "nodes without devices are not asked"


def test_a_search_is_not_queued_whose_data_a_node_cannot_read(
    lent: ClusterDevices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.jsonl").write_text('{"text": "a"}\n')
    service = Service(make_app(tmp_path, f"sqlite:///{tmp_path}/service.db", Roots(data={"team": tmp_path / "data"})))
    service.app.state.devices = lent
    lent._process = Reporter(lent, {f"{tmp_path}/data/corpus.jsonl": ["a1"]})  # type: ignore[assignment]
    client, body = (
        service.client("anna"),
        {"model": "bert-mini", "global_batch_size": 8, "dataset": "team:corpus.jsonl"},
    )
    for query in ("", "?dry_run=true"):
        answer = client.post(f"/api/v1/searches{query}", json=body)
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/dataset")
        assert "small cannot read 'team:corpus.jsonl'" in answer.json()["detail"]
    assert service.store.list()[0] == []
    report(lent, GPUS)
    assert client.post("/api/v1/searches", json=body).status_code == 201


def test_a_search_that_is_sent_before_the_cluster_has_answered_is_to_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to a server that has just taken the place of another one: what it lends is unknown, and the request is right."""
    service = Service(make_app(tmp_path, f"sqlite:///{tmp_path}/service.db", Roots()))
    monkeypatch.setattr(ClusterDevices, "_follow", lambda self: None)
    monkeypatch.setattr(cluster, "READ_S", 0.2)
    devices = service.app.state.devices = ClusterDevices("head:6379", ["cpu"], is_awaited=False)
    monkeypatch.setattr(devices, "unreadable", lambda path: [])
    client, body = service.client("anna"), {"model": "bert-mini", "global_batch_size": 8}
    answer = client.post("/api/v1/searches", json=body)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["detail"] == "The Ray cluster at head:6379 has not answered yet."
    report(devices, CPUS)
    assert client.post("/api/v1/searches", json=body).status_code == 201


def test_a_silent_cluster_lends_nothing(lent: ClusterDevices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "STALE_S", -1.0)
    assert lent.free([]) == []
    assert lent.problem() == "the Ray cluster at head:6379 does not answer"


@pytest.mark.parametrize(("kinds", "message"), [(["gpu"], "'gpu' is not a kind"), (["cpu"], "Nothing answers")])
def test_a_cluster_that_is_not_there_is_refused(kinds: list[str], message: str) -> None:
    pytest.importorskip("ray", reason="ray is not installed: its extra is not the core's")
    with pytest.raises(InvalidRequest, match=message):
        ClusterDevices("127.0.0.1:1", kinds)


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
def test_searches_of_one_and_two_devices_run_on_a_cluster_whose_nodes_come_and_go(tmp_path: Path) -> None:
    """A node is killed while a search runs on it: the search goes on without it, or waits until there are enough again."""
    pytest.importorskip("ray", reason="ray is not installed: its extra is not the core's")
    from tests.executors.cluster import cluster_of_two

    with cluster_of_two() as (machines, nodes):
        words = ("--executor", "ray", "--address", machines.address, "--allow-unauthenticated", "--devices", "cpu")
        variables = {**os.environ, "RAY_ADDRESS": machines.address}
        with serving(tmp_path, *words, variables=variables) as server:
            http = server.http
            assert len(http.get("/devices").json()) == 2
            narrow, wide = server.submit(REQUEST), server.submit({**REQUEST, "devices": 2, "seed": 1})
            lent = server.when(narrow, state="running")["lent"]
            assert lent.startswith("cpu@")
            assert server.when(narrow)["state"] == "done"
            search = server.when(wide, state="running")
            assert len(search["lent"].split(",")) == 2
            assert becomes_true(lambda: bool(http.get(f"/searches/{wide}/trials").json()), 120)
            threading.Thread(target=machines.remove_node, args=(nodes[0], False)).start()
            assert becomes_true(lambda: len(http.get("/devices").json()) == 1, 60)
            machines.add_node(num_cpus=1, object_store_memory=80 << 20)
            assert becomes_true(lambda: len(http.get("/devices").json()) == 2, 60)
            search = server.when(wide, seconds=400)
            assert search["state"] == "done", search["problem"]
