"""What somebody tries who means no good, against a real server process: what is refused, and that it goes on for the others."""

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from autotune.service.connections import MOST_WAITING
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of which 1,024 files may be open, with a log as a terminal shows it."""
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    with serving(tmp_path_factory.mktemp("attacked"), "--log-format", "text", variables=variables) as server:
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


# Terminals --------------------------------------------------------------------------------------------------------


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
