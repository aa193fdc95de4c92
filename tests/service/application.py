"""The service's application without its dispatcher: nothing that is queued is run. And people who call it."""

import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from autotune.service.records import RUNNING, Search
from autotune.service.roots import Roots
from autotune.service.server import Settings, create_app

URL = "http://127.0.0.1:8321"
SMALL = {"model": "bert-mini", "global_batch_size": 8, "device": "cpu"}
"""A request that any server takes."""
CANARY = "canary-5f2d"
"""In files that no request may have opened."""
CONFIG = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class Service:
    """An application, and what is behind it."""

    def __init__(self, app: FastAPI) -> None:
        self.app, self.store, self.accounts = app, app.state.store, app.state.accounts

    def token(self, user: str, role: str = "submitter") -> str:
        """The secret of a new token."""
        return self.accounts.create(user, role, None, "tests")[1]

    def client(self, user: str = "", role: str = "submitter", **options: Any) -> TestClient:
        """A client with this user's new token; without a user without one."""
        headers = {"Authorization": f"Bearer {self.token(user, role)}"} if user else {}
        return TestClient(self.app, base_url=URL, headers=headers, **options)

    def queued(self, owner: str = "anna", name: str = "small", **request: Any) -> Search:
        """A search in the queue."""
        return self.store.submit(owner, name, SMALL | request)[0]

    def running(self, owner: str = "anna", **request: Any) -> Search:
        """A search that the dispatcher has started."""
        self.queued(owner, **request)
        claimed = self.store.claim(["cpu"], 1000)
        assert claimed is not None
        assert claimed.state == RUNNING
        return claimed

    def ended(self, state: str = "done", owner: str = "anna", **end: Any) -> Search:
        """A search that has ended so."""
        search = self.running(owner)
        assert self.store.end(search.id, search.attempt, state, **end)
        return self.store.read(search.id)


def make_app(folder: Path, url: str, roots: Roots, **options: Any) -> FastAPI:
    """The application of a server whose dispatcher never starts; its database is closed with it. options: other settings."""
    options = {"allowed_hosts": ("tune.example",), "models": roots.models, "data": roots.data} | options
    app = create_app(Settings(state=folder, database=url, devices=("cpu",), **options))
    weakref.finalize(app, app.state.closing.close)
    return app


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The application on a port of the loopback; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            app.state.hub.close()
            thread.join(60)
            assert not thread.is_alive()


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once this is true; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not true within {seconds} s")
        time.sleep(0.01)


_touched: list[str] | None = None


@cache  # a hook cannot be removed
def _install_hook() -> None:
    kinds = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.symlink", "socket.connect")

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if _touched is not None and event in kinds:
            _touched.append(f"{event} {arguments}")

    sys.addaudithook(note)


@contextmanager
def touched() -> Iterator[list[str]]:
    """What this process opens, lists, changes and connects to within the block, as Python's audit events."""
    global _touched
    _install_hook()
    _touched = events = []
    yield events
    _touched = None
