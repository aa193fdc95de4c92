"""A real `autotune serve` in a process of its own, and requests to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.conftest import RECORDED
from tests.hurry import ROOT

SITE = """
import os, runpy, sys
if "autotune.service.runner" in sys.orig_argv:
    os.environ |= {variables!r}
    runpy.run_path({hurried!r})
"""
"""A `sitecustomize` that hurries runners as `tests.hurry` has it: they do not get the variables of the server."""


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
        return httpx2.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The entries of its log."""
        return [json.loads(line) for line in self.stderr.read_text().splitlines()]

    def ended(self, search_id: str, seconds: float = 240.0) -> dict[str, Any]:
        """The search once it has ended; fails where it has not by then."""
        until = time.monotonic() + seconds
        while not (search := self.http.get(f"/searches/{search_id}").json())["ended_at"]:
            assert time.monotonic() < until, search
            time.sleep(0.2)
        return search

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it this signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(90)


def environment(folder: Path, recorded: bool = True) -> dict[str, str]:
    """Variables of a server whose searches hurry. recorded: they are answered from a recording, without processes."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    variables = {"AUTOTUNE_RECORDED": str(RECORDED)} if recorded else {}
    hurried = str(ROOT / "tests" / "hurried" / "sitecustomize.py")
    (site / "sitecustomize.py").write_text(SITE.format(variables=variables, hurried=hurried))
    own = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "XDG_STATE_HOME": str(folder / "state")}
    return {name: value for name, value in os.environ.items() if not name.startswith("AUTOTUNE_")} | own


@contextlib.contextmanager
def serving(folder: Path, *words: str, recorded: bool = True, token: str = "") -> Iterator[Server]:
    """A server with its state below this folder, on a free port, lending the CPU. token: of one that was there before."""
    command = [sys.executable, "-m", "autotune", "serve", "--port", "0", "--devices", "cpu", "--json", *words]
    path = folder / "stderr"
    with path.open("a") as stderr:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(folder, recorded), stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, path.read_text()
            text += line
        facts = json.loads(text)
        yield Server(process, facts["url"], facts["token"] or token, Path(facts["state"]), path)
    finally:
        process.terminate()
        try:
            process.wait(90)
        finally:
            process.kill()
            process.stdout.close()
