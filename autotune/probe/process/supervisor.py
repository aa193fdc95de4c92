"""Supervisor of the host: starts it, and ends and removes everything below it when the host or the parent is gone.

    parent ==socket==> supervisor (nothing heavy imported, child subreaper)
                         └─ host ─ fork ─> probes

It imports nothing that takes time: whenever the parent is killed, also while the host imports torch, nothing is left a
moment later. Where the supervisor is killed, the kernel ends the host and its probes.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from autotune.probe.process import cleanup
from autotune.probe.process.guard import guard

KEPT = "AUTOTUNE_KEPT"
"""Variable of the supervisor of a command that is guarded: folders that it may write, a list in JSON."""

LOOK_MS = 100
"""Milliseconds between looks for the end of the host or the command."""


def main() -> NoReturn:
    """Supervise a host that serves a socket, or a command.

    `python -m autotune.probe.process.supervisor FD FOLDER [COMMAND ...]`. FD: descriptor of the socket. FOLDER: for its
    temporary files, made and removed here. The last line into the socket says how it ended.
    """
    channel, scratch, command = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:]
    cleanup.become_subreaper()
    before, kills_before = cleanup.shared_memory(), cleanup.kernel_oom_kills()
    cleanup.make_scratch(scratch)
    try:
        code = _supervise(channel, command, partial(_guard, scratch))
    finally:
        cleanup.end_descendants()
        cleanup.remove_left_shared_memory(before)
        shutil.rmtree(scratch, ignore_errors=True)
    if code is not None:
        message = {"host_ended": code, "kernel_oom_kills": cleanup.kernel_oom_kills() - kills_before}
        with contextlib.suppress(OSError):  # the parent is gone too
            channel.sendall(json.dumps(message).encode() + b"\n")
    os._exit(0)


def _supervise(channel: socket.socket, command: list[str], enter: Callable[[], Any]) -> int | None:
    """Start the host, or the command in a process that calls `enter`, and wait: its exit code or -signal.

    None if the parent closed the socket or died.
    """
    host_module = [sys.executable, "-P", "-m", "autotune.probe.process.host", str(channel.fileno()), str(os.getpid())]
    host = subprocess.Popen(
        command or host_module,
        pass_fds=[] if command else [channel.fileno()],
        preexec_fn=enter if KEPT in os.environ else None,
    )
    end = select.poll()
    end.register(channel, select.POLLRDHUP)  # the host reads the messages
    while host.poll() is None:
        if end.poll(LOOK_MS):
            return None
    return host.returncode


def _guard(scratch: str) -> None:
    """Guard the user's files from the command, which may write folders that a variable names."""
    guard(Path(scratch, "layers"), [scratch, *json.loads(os.environ.pop(KEPT))])


if __name__ == "__main__":
    main()
