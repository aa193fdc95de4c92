"""A search through everything: a real server, its requests, the client and the command line."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.commands.result import TuningResult
from autotune.core.errors import NothingFits
from autotune.study.plan import Progress
from tests.service.searches import REQUEST, Replaying
from tests.service.servers import Server, environment, samples, serving
from tests.terminals import terminal

OPTIONS: dict[str, Any] = {name: value for name, value in REQUEST.items() if name not in ("model", "global_batch_size")}
WORDS = [
    *("bert-mini", "--global-batch-size", "16", "--sequence-length", "8", "--search-space", "quick"),
    *("--n-trials", "4", "--sampler", "random", "--no-history"),
]
"""The same as `REQUEST`."""


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Replaying:
    return Replaying(tmp_path_factory.mktemp("replaying") / "site")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, replaying: Replaying) -> Iterator[Server]:
    """A server whose searches are replayed."""
    with serving(tmp_path_factory.mktemp("server"), variables=replaying.environment) as server:
        yield server


def command(server: Server, folder: Path, *words: str) -> subprocess.Popen[str]:
    """`autotune` with a token for this server."""
    variables = environment(folder) | {"AUTOTUNE_TOKEN": server.token}
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "autotune", *words], cwd=folder, env=variables, **pipe)


def lines_of_events(server: Server, search_id: str, after: int = 0) -> list[dict[str, Any]]:
    """The stream of a search's events to its end, as {"id", "event", "data"}."""
    events = []
    with server.http.sse(f"/searches/{search_id}/events", headers={"Last-Event-ID": f"{after}"}) as source:
        for event in source:
            events += [{"id": int(event.id), "event": event.event, "data": event.json()}] if event.data else []
    return events


# Requests -------------------------------------------------------------------------------------------------------


def check_search(server: Server, request: dict[str, Any]) -> str:
    """Submit it twice with one key, read its stream to the end, its result, its table and its files, and delete it: its id."""
    key = {"Idempotency-Key": "once"}
    first, again = (server.http.post("/searches", json=request, headers=key) for _ in range(2))
    assert [first.status_code, again.status_code] == [201, 200]
    search_id = first.json()["id"]
    assert again.json()["id"] == search_id
    events = lines_of_events(server, search_id)
    assert [event["id"] for event in events] == [*range(1, len(events) + 1)]
    states = [event["data"]["state"] for event in events if event["event"] == "state"]
    assert states == ["queued", "running", "done"]
    tried = [event["data"]["number"] for event in events if event["event"] == "trial"]
    assert tried == [*range(len(tried))]
    assert lines_of_events(server, search_id, after=events[-3]["id"]) == events[-2:]
    over = server.http.get(f"/searches/{search_id}/events", headers={"Last-Event-ID": f"{events[-1]['id']}"})
    assert over.status_code == 204

    assert samples(server.http.get(f"{server.url}/metrics").text)['autotune_searches{state="done"}'] == 1
    search = server.http.get(f"/searches/{search_id}").json()
    result = server.http.get(f"/searches/{search_id}/result").json()
    assert (search["state"], search["headline"]) == ("done", result["headline"])
    assert result["trials"] == len(tried) == request["n_trials"]
    sizes = ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_size")
    product = 1
    for name in sizes:
        product *= result["best"][name]
    assert product == request["global_batch_size"]
    table = server.http.get(f"/searches/{search_id}/files/trials.csv", headers={"Accept": "*/*"}).text
    assert len(table.splitlines()) == 1 + len(tried)
    names = {file["name"] for file in server.http.get(f"/searches/{search_id}/files").json()}
    assert {"report.html", "summary.md", "request.json", "study.tar.gz"} <= names
    assert ("best_training_arguments.json" in names) is (result["best"]["number"] != 0)
    for name in names:
        assert server.http.get(f"/searches/{search_id}/files/{name}").status_code == 200
    secrets = (str(server.state), server.token)
    texts = [server.http.get(f"/searches/{search_id}/files/{name}").content for name in names]
    assert not [secret for secret in secrets for text in texts if secret.encode() in text]

    assert server.http.post(f"/searches/{search_id}/cancel").json()["state"] == "done"
    assert server.http.delete(f"/searches/{search_id}").status_code == 204
    assert server.http.get(f"/searches/{search_id}").status_code == 404
    return search_id


REAL = {"model": "bert-mini", "global_batch_size": 8, "sequence_length": 64, "n_trials": 2, "device": "cpu"}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_real_search_goes_from_a_request_to_its_report(tmp_path: Path, all_cores: None) -> None:
    with serving(tmp_path) as server:
        check_search(server, REAL)
    assert not [entry for entry in server.log if entry["level"] in ("warning", "error", "critical")]


def test_a_replayed_search_is_counted_once_and_nothing_names_it_with_either_database(
    database_url: str, tmp_path: Path, replaying: Replaying
) -> None:
    with serving(tmp_path, "--database", database_url, variables=replaying.environment) as server:
        search_id = check_search(server, dict(REQUEST))
        for _ in range(2):
            text = server.http.get(f"{server.url}/metrics").text
    numbers = samples(text)
    assert numbers['autotune_searches_ended_total{end="done"}'] == 1
    assert numbers["autotune_search_seconds_count"] == numbers["autotune_queue_wait_seconds_count"] == 1
    assert sum(value for name, value in numbers.items() if name.startswith("autotune_probes_total")) == 4
    assert (numbers["autotune_devices"], numbers["autotune_devices_lent"]) == (1, 0)
    assert numbers['autotune_http_seconds_count{method="POST",route="/api/v1/searches",status="201"}'] == 1
    assert not [word for word in (search_id, "bert-mini", "admin") if word in text]


# The client -----------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_client_s_result_is_the_server_s_and_a_study_as_any_other(server: Server, tmp_path: Path) -> None:
    shown: list[Progress] = []
    client = autotune.connect(server.url, server.token)
    result = client.search("bert-mini", 16, watch=shown.append, output_dir=tmp_path, name="mine", **OPTIONS)
    (search,) = [search for search in server.http.get("/searches").json() if search["name"] == "mine"]
    of_server = server.http.get(f"/searches/{search['id']}/result").json()
    assert json.loads(json.dumps(result.to_dict())) | {"folder": None} == of_server | {"folder": None}
    assert result.folder == tmp_path / f"mine-{search['id'][-8:]}"
    assert result.name == result.folder.name
    assert {"report.html", "trials.csv", "request.json"} <= {path.name for path in result.folder.iterdir()}
    trials = [progress for progress in shown if progress.kind == "trial"]
    assert [len(progress.trials) for progress in trials] == [1, 2, 3, 4]
    leader = shown[-1].best or shown[-1].fastest
    assert leader is not None
    assert result.best_trial.number in (leader.number, 0), "what is not shown to be faster is not the answer"
    assert len(TuningResult.load(result.folder).to_frame()) == 4


def test_nothing_that_fits_is_the_same_error_as_without_a_server(server: Server, tmp_path: Path) -> None:
    client = autotune.connect(server.url, server.token)
    with pytest.raises(NothingFits, match="a limit of 1 MiB"):
        client.search("bert-mini", 16, watch=False, output_dir=tmp_path, memory_limit="1MiB", **OPTIONS)


# The command line -----------------------------------------------------------------------------------------------


def test_the_command_line_prints_and_keeps_what_a_search_here_does(server: Server, tmp_path: Path) -> None:
    done = command(server, tmp_path, "search", *WORDS, "--server", server.url)
    out, err = done.communicate(timeout=240)
    assert done.returncode == 0, err
    assert "\ntrial 3: " in out
    assert "Why it ended:" in out
    (folder,) = (tmp_path / "reports").iterdir()
    assert f"reports/{folder.name}/report.html" in out


@pytest.mark.nightly
def test_a_detached_search_is_queued_and_left(server: Server, tmp_path: Path) -> None:
    done = command(server, tmp_path, "search", *WORDS, "--server", server.url, "--detach", "--json")
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    queued = json.loads(out)
    assert queued["url"] == f"{server.url}/searches/{queued['id']}"
    assert server.when(queued["id"])["state"] == "done"
    assert not (tmp_path / "reports").exists()


def test_what_a_server_refuses_is_one_line_with_its_exit_code(server: Server, tmp_path: Path) -> None:
    done = command(server, tmp_path, "search", "team:none", "--global-batch-size", "16", "--server", server.url)
    _, err = done.communicate(timeout=60)
    assert done.returncode == 2
    assert err.startswith("Error: ")
    assert "team" in err
    assert len(err.splitlines()) == 1


@pytest.mark.nightly
def test_ctrl_c_without_a_terminal_leaves_the_search_running(
    server: Server, replaying: Replaying, tmp_path: Path
) -> None:
    replaying.hold()
    try:
        searching = command(server, tmp_path, "search", *WORDS, "--server", server.url)
        (running,) = searches_when_running(server)
        searching.send_signal(signal.SIGINT)
        _, err = searching.communicate(timeout=60)
    finally:
        replaying.release()
    assert searching.returncode == 130
    assert f"The search continues: watch it, or cancel it, at {server.url}/searches/{running}" in err
    assert server.when(running)["state"] == "done"


@pytest.mark.nightly
@pytest.mark.parametrize(("answer", "state"), [("y\r", "cancelled"), ("\r", "done")])
def test_ctrl_c_on_a_terminal_asks_what_to_do(
    answer: str, state: str, server: Server, replaying: Replaying, tmp_path: Path
) -> None:
    replaying.hold()
    words = ["search", *WORDS, "--server", server.url]
    try:
        with terminal(words, tmp_path, AUTOTUNE_TOKEN=server.token) as searching:
            searching.wait_for("(baseline)")
            (running,) = searches_when_running(server)
            searching.press("\x03")
            searching.wait_for("Cancel the search on the server?")
            searching.press(answer)
            assert searching.end() == 130
    finally:
        replaying.release()
    assert server.when(running)["state"] == state


def searches_when_running(server: Server) -> list[str]:
    """Ids of the running searches, once there are some and their first probe has begun."""
    until = time.monotonic() + 120
    while True:
        page = server.http.get("/searches", params={"state": "running"}).json()
        if found := [search["id"] for search in page if (search["progress"] or {}).get("kind") == "probing"]:
            return found
        assert time.monotonic() < until, page
        time.sleep(0.05)


def test_doctor_says_how_a_server_is(server: Server, tmp_path: Path) -> None:
    done = command(server, tmp_path, "doctor", "--server", server.url)
    out, _ = done.communicate(timeout=60)
    assert done.returncode == 0
    assert out.startswith(f"{server.url}: ready\n")
    assert "dispatcher    ok" in out
