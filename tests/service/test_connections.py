"""Deadlines of connections, and how many may wait for their clients."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from autotune.service import connections
from autotune.service.connections import Connection
from tests.service.application import wait_until

LARGE = 64 * 2**20
"""Bytes of an answer that no socket's buffer holds."""

Address = tuple[str, int]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads a body to its end, and answers after a while; /large with many bytes."""
    if scope["path"] != "/unread":
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            return
    body = b"x" * (LARGE if scope["path"] == "/large" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def served(tls: ssl.SSLContext | None = None) -> Iterator[Address]:
    """The address of a server with these connections."""
    http: Any = partial(Connection, tls=tls)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(application, http=http, lifespan="off", log_config=None, timeout_graceful_shutdown=5)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server and of its client."""
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=300)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=certificate)


def opened(stack: contextlib.ExitStack, address: Address, text: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.create_connection(address, timeout=60))
    connection.sendall(text)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(2**16):
            content += chunk
    return content


def status(connection: socket.socket, path: str = "/") -> int:
    """The status of another request on this connection."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\nxx"):
        if not (chunk := connection.recv(2**16)):
            return 0
        answer += chunk
    return int(answer.split()[1])


HALF_A_HEAD = b"GET / HTTP/1.1\r\nHost: local"
HALF_A_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nab"
UNREAD = HALF_A_BODY.replace(b"/ ", b"/unread ", 1)


@pytest.mark.parametrize("text", [b"", HALF_A_HEAD, HALF_A_BODY, UNREAD])
def test_a_connection_that_sends_nothing_more_is_closed(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "SILENCE_S"):
        monkeypatch.setattr(connections, name, 0.2)
    with served() as address, contextlib.ExitStack() as stack:
        answer = rest(opened(stack, address, text))
    assert answer.startswith(b"HTTP/1.1 200 " if text == UNREAD else b"")


@pytest.mark.parametrize("text", [HALF_A_HEAD, HALF_A_BODY, UNREAD])
def test_one_that_sends_a_byte_now_and_then_is_closed_too(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "BODY_S"):
        monkeypatch.setattr(connections, name, 0.5)
    with served() as address, contextlib.ExitStack() as stack:
        connection = opened(stack, address, text)
        with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012
            for _ in range(600):
                time.sleep(0.1)
                connection.sendall(b"a")


def test_who_does_not_read_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READING_S", 0.2)
    with served() as address, contextlib.ExitStack() as stack:
        connection = opened(stack, address, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.5)
        assert len(rest(connection)) < LARGE
        assert status(opened(stack, address)) == 200


def test_requests_in_time_are_answered_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 1.0)
    with served() as address, contextlib.ExitStack() as stack:
        connection = opened(stack, address)
        for _ in range(8):  # longer than the deadline of one of them
            assert status(connection) == 200
            time.sleep(0.2)
        connection.sendall(HALF_A_BODY + b"a" * 998)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


def test_the_connection_that_waited_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 3)
    with served() as address, contextlib.ExitStack() as stack:
        early = [opened(stack, address, text) for text in (b"", HALF_A_HEAD, HALF_A_BODY)]
        assert status(opened(stack, address)) == 200
        assert rest(early[0]) == b""
        assert status(opened(stack, address)) == 200
        assert rest(early[1]) == b""


def test_an_encrypted_connection_is_one_too(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = contexts
    monkeypatch.setattr(connections, "MOST_WAITING", 3)
    with served(server) as address, contextlib.ExitStack() as stack:
        silent = [opened(stack, address) for _ in range(3)]  # not even a handshake
        for _ in range(3):
            plain = opened(stack, address)
            encrypted = stack.enter_context(client.wrap_socket(plain, server_hostname="127.0.0.1"))
            assert [status(encrypted) for _ in range(3)] == [200] * 3
        assert [rest(connection) for connection in silent] == [b""] * 3
        wrong = opened(stack, address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in rest(wrong)


def test_a_handshake_has_a_deadline(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    with served(contexts[0]) as address, contextlib.ExitStack() as stack:
        assert rest(opened(stack, address)) == b""
