"""What somebody tries who means no good, against a real server process: what is refused, and that it goes on for the others."""

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import AF_INET
from typing import Any

import httpx2
import psutil
import pytest

from autotune.service.access import COOKIE, MOST_FAILURES
from autotune.service.connections import BODY_S, HEAD_S, MOST_WAITING
from autotune.space.settings import SETTINGS
from tests.probe.processes import bounded
from tests.service.application import wait_until
from tests.service.servers import Server, environment, serving

FILES = 1024
"""Open files of the server at most: what systemd gives to a service that says nothing of it."""

CONNECTIONS = 1100
HALF_A_HEAD = b"GET /livez HTTP/1.1\r\nHost: 127"
HALF_A_BODY = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    b"Content-Length: 99\r\n\r\nto"
)
SMALL = {"model": "bert-mini", "global_batch_size": 8}
CONFIG = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
CANARY = "canary-5f2d"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Roots of models and data as whoever may write there would leave them, a canary beside them, and a hub's cache."""
    folder = tmp_path_factory.mktemp("attacked")

    def write(place: str, **files: Any) -> None:
        (folder / place).mkdir(parents=True)
        for name, content in files.items():
            name = name.replace("__", ".")
            (folder / place / name).write_text(content if isinstance(content, str) else json.dumps(content))

    index = {"weight_map": {"a": "../../canary.safetensors"}}
    write("models/index", config__json=CONFIG, model__safetensors__index__json=index)
    write("models/tokenizer", config__json=CONFIG, tokenizer_config__json={"vocab_file": "/etc/passwd"})
    write("data/saved", dataset_info__json={}, state__json={"_data_files": [{"filename": "../../canary.arrow"}]})
    write("data/splits", dataset_dict__json={"splits": ["../../canary"]})
    write("data/good")
    (folder / "data" / "good" / "corpus.jsonl").write_text('{"text": "a"}\n')
    for name in ("canary.safetensors", "canary.arrow"):
        (folder / name).write_text(CANARY)
    cached = "hub/models--ann--pickled/snapshots/0"
    write(cached, config__json=CONFIG, pytorch_model__bin="x")
    write("hub/models--ann--pickled/refs", main="0")
    return folder


def start(folder: Path, *words: str) -> contextlib.AbstractContextManager[Server]:
    variables = os.environ | {"HF_HUB_CACHE": str(folder / "hub"), "PYTHONUNBUFFERED": "1"}
    return serving(folder, *words, variables=variables)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server of which 1,024 files may be open, with a log as a terminal shows it."""
    roots = [f"--{kind}=team={folder / kind}" for kind in ("models", "data")]
    with start(folder, *roots, "--hub", "cached", "--hub-pattern", "*", "--log-format", "text") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        yield server


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may hold the attackers' ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CONNECTIONS:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address(server: Server) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rpartition(":")[2])


def refusal(server: Server, **fields: Any) -> str:
    """What the server says of this request, which it must refuse."""
    answer = server.http.post("/searches?dry_run=true", json=SMALL | fields)
    assert answer.status_code == 422, answer.text
    assert CANARY not in answer.text
    return str(answer.text)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other end has closed it, without waiting."""
    connection.setblocking(False)
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


# Connections ------------------------------------------------------------------------------------------------------


def test_silent_and_half_sent_connections_stop_nobody(server: Server, many_files: None) -> None:
    with contextlib.ExitStack() as stack:
        opened = []
        for number in range(CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(address(server), timeout=30))
            with contextlib.suppress(OSError):  # it made room already
                connection.sendall((b"", HALF_A_HEAD, HALF_A_BODY)[number % 3])
            opened.append(connection)
            if number % 100 == 99:
                assert httpx2.get(f"{server.url}/livez", timeout=30).status_code == 200
        assert server.http.get("/me").status_code == 200
        wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < MOST_WAITING + 100)
        assert sum(map(is_closed, opened)) >= CONNECTIONS - MOST_WAITING - 50
    assert "Too many open files" not in server.stderr.read_text()


@pytest.mark.nightly
def test_whoever_sends_nothing_or_little_is_cut_off(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address(server))) for _ in range(3)]
        for connection, text in zip(silent, (b"", HALF_A_HEAD, HALF_A_BODY), strict=True):
            connection.sendall(text)
        slow = stack.enter_context(socket.create_connection(address(server)))
        slow.sendall(HALF_A_BODY)
        begun = time.monotonic()
        ends: dict[int, float] = {}
        while len(ends) < 4 and time.monotonic() < begun + 4 * BODY_S:
            for number, connection in enumerate((*silent, slow)):
                if number not in ends and is_closed(connection):
                    ends[number] = time.monotonic() - begun
            with contextlib.suppress(OSError):
                slow.send(b"a")
            time.sleep(0.5)
    assert sorted(ends) == [0, 1, 2, 3]
    assert min(ends.values()) > HEAD_S - 2
    assert ends[3] > BODY_S - 2, "what comes slowly has longer"


SMUGGLED = b"0\r\n\r\nGET /api/v1/me HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        f"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(SMUGGLED)}\r\nTransfer-Encoding: chunked",
        f"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: {len(SMUGGLED)}",
        "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 0",
        "GET /livez HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_body_of_two_lengths_ends_its_connection(head: str, server: Server) -> None:
    with socket.create_connection(address(server), timeout=30) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + SMUGGLED)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()


# Requests ---------------------------------------------------------------------------------------------------------


def test_no_setting_names_a_folder_of_the_server(server: Server) -> None:
    nvme = "3_offload_nvme:/etc/cron.d"
    for fields in ({"fix": {"zero": nvme}}, {"only": {"zero": [nvme]}}, {"space": f"parameters: {{zero: ['{nvme}']}}"}):
        assert "names a path on the server's disks" in refusal(server, **fields)
    for name in SETTINGS:
        refusal(server, fix={name: "/etc/cron.d"}, only=[f"{name}=/etc"])


def test_no_setting_takes_a_number_without_limit(server: Server) -> None:
    numbers = [("workers", 1000), ("prefetch_factor", 10**6), ("threads", 10**5), ("workers", "1" + "0" * 200)]
    for name, number in numbers:
        for fields in (
            {"fix": {name: number}},
            {"only": [f"{name}={number}"]},
            {"space": f"parameters: {{{name}: [{number}]}}"},
        ):
            assert "is not a whole number from" in refusal(server, **fields)
    assert "is not a whole number from" in refusal(server, args={"dataloader_prefetch_factor": 10**6})


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "team:index"},
        {"model": "team:tokenizer"},
        {"dataset": "team:good", "tokenizer": "team:tokenizer"},
        {"dataset": "team:saved"},
        {"dataset": "team:splits"},
        {"model": "ann/pickled"},
        {"model": "runner.log"},
        {"model": "study"},
    ],
)
def test_no_file_leads_out_of_its_folder_and_none_is_unpickled(server: Server, fields: dict[str, str]) -> None:
    assert re.search("outside of its folder|does not hold", refusal(server, **fields))


def test_a_name_moves_no_cursor_and_turns_no_text_round(server: Server) -> None:
    for letter in ("\x1b", "\x9b", "\u202e", "\u2028"):
        assert "invisible" in refusal(server, name=f"a{letter}b")


# People -----------------------------------------------------------------------------------------------------------


def test_wrong_tokens_lock_out_nobody_else(server: Server) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    statuses = [httpx2.get(f"{server.url}/api/v1/me", headers=wrong).status_code for _ in range(MOST_FAILURES + 5)]
    assert statuses[-1] == 429
    assert server.http.get("/me").status_code == 200
    signed = httpx2.post(f"{server.url}/login", data={"token": server.token})
    assert (signed.status_code, COOKIE in signed.cookies) == (303, True)


def test_a_path_sends_nothing_to_the_terminal(server: Server) -> None:
    httpx2.get(f"{server.url}/%1b%5b2J%1b%5b31mINJECTED%07%c2%9b")
    wait_until(lambda: "INJECTED" in server.stderr.read_text())
    text = server.stderr.read_text()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert r"\x1b[2J" in text


def test_a_hostile_server_sends_nothing_to_the_terminal(tmp_path: Path) -> None:
    body = json.dumps({"ready": False, "checks": {"data\x1b[2J": "\x1b]0;owned\x07\n\u202efine"}}).encode()
    head = (
        f"HTTP/1.1 503 No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        variables = environment(tmp_path, os.environ) | {"AUTOTUNE_TOKEN": "hfat_any"}
        command = [sys.executable, "-m", "autotune", "doctor", "--server", url]
        listener.settimeout(60)
        with bounded(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ) as process:
            connection, _ = listener.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(head.encode() + body)
            output = process.communicate(timeout=60)[0].decode()
    assert "not ready" in output
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", output)


def test_only_the_proxy_connects_to_an_unencrypted_port(tmp_path: Path) -> None:
    found = (
        entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == AF_INET
    )
    own = next((each for each in found if not each.startswith("127.")), "")
    if not own:
        pytest.skip("this machine has the loopback alone")
    words = ("--host", "0.0.0.0", "--behind-proxy", "10.9.8.7", "--allowed-host", own)
    with start(tmp_path, *words) as server:
        port = address(server)[1]
        for url, status in ((f"http://127.0.0.1:{port}", 200), (f"http://{own}:{port}", 403)):
            headers = {"Authorization": f"Bearer {server.token}", "X-Forwarded-For": "10.9.8.7"}
            assert httpx2.get(f"{url}/api/v1/me", headers=headers).status_code == status
            assert httpx2.get(f"{url}/livez").status_code == 200


def test_a_proxy_that_is_everybody_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "autotune", "serve", "--host", "0.0.0.0", "--behind-proxy", "*"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--behind-proxy" in done.stderr
