"""Processes that tests start, and what is running below a host, seen from outside."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from autotune.probe.process import cleanup
from autotune.probe.process.launcher import ProbeHost


def told(folder: Path, name: str) -> Any:
    """What a child told by this name."""
    return json.loads((folder / name).read_text(encoding="utf-8"))


def token_of(pid: int) -> str:
    """The mark that everything below this host carries."""
    return psutil.Process(pid).environ()[cleanup.HOST_TOKEN]


def marked(token: str) -> list[int]:
    """Living processes with that mark."""
    return _marked(f"{cleanup.HOST_TOKEN}={token}")


@contextlib.contextmanager
def unchanged(host: ProbeHost) -> Iterator[None]:
    """Within, orders may do anything: afterwards the host lives, and has no process, file or folder of theirs."""
    pid = host.pid
    assert pid is not None
    process, token = psutil.Process(pid), token_of(pid)
    scratch = Path(process.environ()["TMPDIR"])
    files, scratch_files = len(os.listdir(f"/proc/{pid}/fd")), set(scratch.iterdir())
    yield
    assert host.pid == pid, "the host survives whatever its children do"
    assert sorted(marked(token)) == sorted([process.ppid(), pid])
    assert not process.children()
    assert set(scratch.iterdir()) == scratch_files
    assert len(os.listdir(f"/proc/{pid}/fd")) == files, "the host keeps no file of its children open"


def started_in(folder: Path) -> list[int]:
    """Living processes of commands that were started with `AUTOTUNE_TEST=<folder>`, and those that they started."""
    return _marked(f"AUTOTUNE_TEST={folder}")


def _marked(variable: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            carries = variable.encode() in (path / "environ").read_bytes().split(b"\0")
            if carries and " Z " not in (path / "stat").read_text().rpartition(")")[2][:3]:
                found.append(int(path.name))
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def becomes_true(question: Callable[[], bool], seconds: float) -> bool:
    """Whether the answer becomes yes within these seconds."""
    until = time.monotonic() + seconds
    while not question():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def bounded(process: subprocess.Popen[Any], seconds: float = 300.0) -> Iterator[subprocess.Popen[Any]]:
    """Within, the process; it is killed after so many seconds, and at the end: nothing can wait for it for ever."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        with process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        timer.cancel()
