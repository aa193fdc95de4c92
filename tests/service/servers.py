"""A real `autotune serve` in a process of its own, and requests to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.hurry import ROOT

HURRIED = f"""
import runpy, sys
if "autotune.service.runner" in sys.orig_argv:
    runpy.run_path({str(ROOT / "tests" / "hurried" / "sitecustomize.py")!r})
"""
"""A `sitecustomize` that hurries runners as `tests.hurry` has it, and leaves the server light."""

START_S = 120.0
"""Seconds that a server may take to start."""


@dataclass
class Server:
    """A server that runs; url without a slash at its end, token of an admin."""

    process: subprocess.Popen[str]
    url: str
    token: str
    state: Path
    stderr: Path

    @property
    def http(self) -> httpx2.Client:
        """What asks it as its admin."""
        headers = {"Authorization": f"Bearer {self.token}"}
        limits = httpx2.Limits(max_keepalive_connections=0)
        return httpx2.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60, limits=limits, verify=False)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The entries of its log."""
        return [json.loads(line) for line in self.stderr.read_text().splitlines()]

    def submit(self, request: Mapping[str, Any]) -> str:
        """The id of a new search."""
        answer = self.http.post("/searches", json=dict(request))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def when(self, search_id: str, seconds: float = 240.0, **facts: Any) -> dict[str, Any]:
        """The search once these facts hold of it, by default that it has ended."""
        until = time.monotonic() + seconds
        while True:
            search = self.http.get(f"/searches/{search_id}").json()
            if facts.items() <= search.items() if facts else search["ended_at"]:
                return search  # type: ignore[no-any-return]
            assert time.monotonic() < until, search
            time.sleep(0.03)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it this signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(90)


def samples(text: str) -> dict[str, float]:
    """Of metrics: name and labels -> value."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def hurried(folder: Path) -> dict[str, str]:
    """This process's variables, with PYTHONPATH so that real searches hurry; what they need for that is made in this folder."""
    (site := folder / "site").mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(HURRIED)
    return os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}


def environment(folder: Path, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a server with its state below this folder. variables: its others, by default those of `hurried`."""
    variables = hurried(folder) if variables is None else variables
    inherited = {name: value for name, value in variables.items() if not name.startswith("AUTOTUNE_")}
    return inherited | {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}


def begun(folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A server that starts, as of `serving`."""
    command = [sys.executable, "-m", "autotune", "serve", "--port", "0", "--devices", "cpu", "--json", *words]
    with (folder / "stderr").open("a") as stderr:
        return subprocess.Popen(
            command, cwd=folder, env=environment(folder, variables), stdout=subprocess.PIPE, stderr=stderr, text=True
        )


def announced(process: subprocess.Popen[str], folder: Path, token: str = "") -> Server:
    """The server, once it answers. token: where it was made before."""
    assert process.stdout is not None
    path, text = folder / "stderr", ""
    while not text.endswith("}\n"):
        line = process.stdout.readline()
        assert line, path.read_text()
        text += line
    facts = json.loads(text)
    first = Path(facts["token_file"]).read_text().strip() if facts["token_file"] else token
    return Server(process, facts["url"], first, Path(facts["state"]), path)


@contextlib.contextmanager
def serving(folder: Path, *words: str, variables: Mapping[str, str] | None = None, token: str = "") -> Iterator[Server]:
    """A server on a free port that lends the CPU. variables: as of `environment`; token: where it was made before."""
    process = begun(folder, *words, variables=variables)
    with process, contextlib.ExitStack() as ending:
        ending.callback(process.kill)
        ending.callback(process.terminate)
        starting = threading.Timer(START_S, process.kill)
        starting.start()
        server = announced(process, folder, token)
        starting.cancel()
        yield server
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(90)
