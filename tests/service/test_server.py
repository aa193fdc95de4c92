"""The server's start and end: what is refused, what it prints, and that nothing is lost when it stops."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import Engine

from autotune.core.errors import InvalidRequest, StorageFailed
from autotune.service.server import Settings, create_app
from autotune.service.store import Store
from tests.service.application import wait_until
from tests.service.dispatching import faults
from tests.service.searches import REQUEST, Replaying
from tests.service.servers import Server, announced, begun, environment, serving
from tests.terminals import terminal
from tests.test_architecture import HEAVY, loaded_by

REPLAYED = dict(REQUEST)


def refused(folder: Path, *words: str) -> str:
    """What `autotune serve` says that does not start, with exit code 1 or 2."""
    command = [sys.executable, "-m", "autotune", "serve", "--devices", "cpu", *words]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2)
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    return line


# Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gpu-machine"])
def test_an_address_that_others_reach_wants_encryption(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="unencrypted"):
        Settings(host=host)
    Settings(host=host, behind_proxy=("10.0.0.1",))
    Settings(host=host, tls_cert=tmp_path / "cert", tls_key=tmp_path / "key")


@pytest.mark.parametrize("network", ["*", "nonsense", "0.0.0.0/0", "::/0", "10.0.0.1/8", "caddy", ""])
def test_a_proxy_is_an_address_or_a_network_but_not_everybody(network: str) -> None:
    with pytest.raises(InvalidRequest, match="--behind-proxy"):
        Settings(host="0.0.0.0", behind_proxy=(network,))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_the_loopback_wants_nothing(host: str) -> None:
    assert Settings(host=host).url(80) == f"http://{f'[{host}]' if ':' in host else host}:80"


def test_half_of_a_certificate_and_a_root_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="needs a certificate and its key"):
        Settings(tls_cert=tmp_path / "cert")
    with pytest.raises(InvalidRequest, match="models-of-mine"):
        Settings(models={"team": tmp_path / "models-of-mine"})


def test_a_port_in_use_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use" in refused(tmp_path, "--port", f"{port}")
    assert not (tmp_path / "state").exists()


# Start ----------------------------------------------------------------------------------------------------------


def test_the_server_is_light() -> None:
    assert not loaded_by("import autotune.service.server") & {*HEAVY, "optuna", "pandas", "scipy"}


def test_a_first_start_makes_a_private_folder_and_the_only_admin(tmp_path: Path) -> None:
    """The token is in a file: what is printed may be kept in a log, which is JSON to its last line."""
    with serving(tmp_path) as server:
        assert stat.S_IMODE(server.state.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in server.state.iterdir() if path.is_file()} == {0o600}
        assert (server.state / "admin.token").read_text() == f"{server.token}\n"
        assert server.http.get("/me").json()["role"] == "admin"
        assert psutil.Process(server.process.pid).memory_info().rss < 150e6
        first = server.token
        assert "Another autotune serve uses" in refused(tmp_path, "--port", "0")
    assert {"uvicorn.error"} <= {entry["logger"] for entry in server.log}
    assert first not in json.dumps(server.log)
    with serving(tmp_path, token=first) as again:
        assert again.token == first
        assert again.http.get("/me").status_code == 200


def test_on_a_terminal_the_first_token_is_shown_and_nowhere_else(tmp_path: Path) -> None:
    with terminal(["serve", "--port", "0", "--devices", "cpu"], tmp_path, XDG_STATE_HOME=str(tmp_path)) as serving:
        serving.wait_for("valid for 24 h: hfat_")
        serving.press("\x03")
        assert serving.end() == 0
    assert not (tmp_path / "autotune" / "admin.token").exists()


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


@pytest.mark.parametrize(
    ("mode", "content", "message"),
    [
        (0o1777, "other.txt", "can be changed by other users"),
        (0o1777, None, "can be changed by other users"),
        (0o775, "service.db", "can be changed by other users"),
        (0o755, "other.txt", "holds other files, and other users can read it"),
        (0o755, None, ""),
        (0o755, "lost+found", ""),
        (0o750, "serve.lock", ""),
        (0o700, "other.txt", ""),
    ],
)
def test_a_folder_that_is_there_is_left_as_it_is_and_refused_if_it_is_not_a_server_s(
    mode: int, content: str | None, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    if content:
        (folder / content).touch(0o644)
    folder.chmod(mode)
    before = modes(folder)
    if message:
        with pytest.raises(StorageFailed, match=message):
            create_app(Settings(state=folder, devices=("cpu",)))
        assert modes(folder) == before
    else:
        create_app(Settings(state=folder, devices=("cpu",))).state.closing.close()
        assert modes(folder).items() >= before.items()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    os.chown(tmp_path / "state", 65534, 65534)
    with pytest.raises(StorageFailed, match="belongs to another user"):
        create_app(Settings(state=tmp_path / "state", devices=("cpu",)))


# Two servers ----------------------------------------------------------------------------------------------------


def cut_connections(database_url: str) -> None:
    """End all sessions of the database, as a restart of PostgreSQL or a firewall does."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )


@pytest.mark.nightly
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_server_that_lost_its_database_to_another_one_ends_and_has_changed_nothing(
    database_url: str, engine: Engine, tmp_path: Path, replaying: Replaying
) -> None:
    """The first one sleeps while its connections are cut and the second one starts."""
    replaying.hold()
    words = ("--database", database_url)
    with serving(tmp_path, *words, variables=replaying.environment) as first:
        search_id = first.submit(REPLAYED)
        wait_until(lambda: has_begun(first.http.get(f"/searches/{search_id}").json()))
        first.process.send_signal(signal.SIGSTOP)
        cut_connections(database_url)
        (tmp_path / "other").mkdir()
        with serving(tmp_path / "other", *words, variables=replaying.environment, token=first.token) as second:
            first.process.send_signal(signal.SIGCONT)
            assert first.process.wait(60) == 1
            replaying.release()
            search = second.when(search_id)
            store = Store(engine)
            assert faults(store, second.state, store.read(search_id)) == []
    assert (search["state"], search["attempt"]) == ("done", 2)
    assert "Error: Another autotune serve has taken the database" in first.stderr.read_text()


def killed(server: Server) -> float:
    """Kill a server, and the time of that."""
    server.process.kill()
    server.process.wait()
    return time.monotonic()


@pytest.mark.nightly
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("place", ["", "other"])
def test_a_standby_goes_on_within_fifteen_seconds_with_the_same_folder_or_from_the_beginning_with_another(
    place: str, database_url: str, engine: Engine, tmp_path: Path, replaying: Replaying
) -> None:
    words = ("--database", database_url)
    (tmp_path / "other").mkdir()
    with contextlib.ExitStack() as ending:
        first = ending.enter_context(serving(tmp_path, *words, variables=replaying.environment))
        process = begun(tmp_path / place, *words, "--standby", variables=replaying.environment)
        ending.enter_context(process)
        ending.callback(process.kill)
        search_id = first.submit(REPLAYED)
        wait_until(lambda: bool(first.http.get(f"/searches/{search_id}/trials").json()))
        replaying.hold()
        time.sleep(4)
        assert process.poll() is None
        killed_at = killed(first)
        second = announced(process, tmp_path / place, first.token)
        assert second.http.get(f"/searches/{search_id}").status_code == 200
        assert time.monotonic() < killed_at + 15
        replaying.release()
        assert second.when(search_id)["state"] == "done"
        store = Store(engine)
        assert faults(store, second.state, store.read(search_id)) == []
        assert ("lost" in {event.kind for event in store.events(search_id)}) == bool(place)
        assert second.stop() == 0


@pytest.mark.nightly
def test_a_backup_that_was_made_while_it_ran_is_restored(tmp_path: Path, replaying: Replaying) -> None:
    """Searches that were done are there, and one that ran goes on, on a machine that has none of its files."""
    with serving(tmp_path, variables=replaying.environment) as server:
        done = server.submit(REPLAYED)
        server.when(done)
        running = server.submit({**REPLAYED, "seed": 1})
        wait_until(lambda: bool(server.http.get(f"/searches/{running}/trials").json()))
        replaying.hold()
        state = tmp_path / "restored" / "state" / "autotune"
        state.mkdir(parents=True, mode=0o700)
        with (
            contextlib.closing(sqlite3.connect(server.state / "service.db")) as source,
            contextlib.closing(sqlite3.connect(state / "service.db")) as target,
        ):
            source.backup(target)
        files = server.http.get(f"/searches/{done}/files").json()
        token = server.token
    replaying.release()
    with serving(tmp_path / "restored", variables=replaying.environment, token=token) as server:
        assert server.http.get(f"/searches/{done}/files").json() == files
        assert server.when(running)["state"] == "done"
        assert server.http.get("/searches").json()[0]["id"] == running


# End ------------------------------------------------------------------------------------------------------------


def has_begun(search: dict[str, Any]) -> bool:
    return (search["progress"] or {}).get("kind") == "probing"


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_stops_ends_streams_and_runners_and_the_next_one_goes_on(
    number: signal.Signals, tmp_path: Path, replaying: Replaying
) -> None:
    replaying.hold()
    streamed: list[str] = []
    with serving(tmp_path, variables=replaying.environment) as server:
        search_id, token = server.submit(REPLAYED), server.token
        http = server.http

        def listen() -> None:
            with http.sse(f"/searches/{search_id}/events") as source:
                streamed.extend(event.data for event in source)

        listening = threading.Thread(target=listen)
        listening.start()
        wait_until(lambda: has_begun(http.get(f"/searches/{search_id}").json()))
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert processes
        assert server.stop(number) == 0
        listening.join(10)
        assert not listening.is_alive()
        assert not psutil.wait_procs(processes, 30)[1]
    assert streamed
    replaying.release()
    with serving(tmp_path, variables=replaying.environment, token=token) as server:
        search = server.when(search_id)
    assert (search["state"], search["attempt"]) == ("done", 2)
    assert len(replaying.executed) == len({*replaying.executed}) + 1  # the probe that was interrupted
