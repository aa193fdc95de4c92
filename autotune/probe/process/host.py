"""The host: imports torch and transformers once, and forks a process for each order.

    parent ==socket==> host (one thread, CUDA never awake, child subreaper)
                        ├─ fork ─> child 1   session of its own; answers and logs by file
                        └─ fork ─> child 2   ... only after everything below child 1 is gone

With AUTOTUNE_SPAWN=1 it imports nothing, and each child imports for itself: no library that wakes CUDA or starts a thread
while it is imported can make forking unsafe, and each order takes longer by these imports.
Where an order's configuration has several ranks, as many children are forked at once, and end together.
When the socket closes, the supervisor ends the host and everything below it: a killed parent leaves nothing.
"""

import contextlib
import gc
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from autotune.core import Outcome, read_json
from autotune.probe.order import LOG, ORDER, Order, answer_name
from autotune.probe.process import cleanup
from autotune.probe.process.child import Parent, run_child
from autotune.probe.process.lazy_import import WAKES_CUDA, open_later
from autotune.probe.process.ranks import free_port

SPAWN = "AUTOTUNE_SPAWN"
"""The user's variable: 1 lets each child import the libraries by itself, into a process that has none."""

UVM_DEVICE = "/dev/nvidia-uvm"

LOOK_S = 1.0
"""Seconds between looks at the log, while no child ends."""

LOG_HEAD, LOG_TAIL = 1_000_000, 200_000
"""Bytes kept of the beginning and of the end of a log: a flood must not fill the disk."""


def main() -> NoReturn:
    """`python -m autotune.probe.process.host FD SUPERVISOR`: serve the socket with that file descriptor until it closes.

    SUPERVISOR: the process id of the one that started it.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    cleanup.end_with(int(sys.argv[2]))
    os.set_inheritable(channel.fileno(), False)
    cleanup.become_subreaper()
    if os.environ.get(SPAWN) != "1":
        _import_libraries()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # waited for, see `Children`
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone, and so are we in a moment
        _say(channel, {"ready": True, "pid": os.getpid()} | _reasons_not_to_fork())
        _serve(channel)
    os._exit(0)


def _import_libraries() -> None:
    """Import what every probe needs and nothing that initializes CUDA."""
    gc.disable()  # a sixth to a quarter of the time of these imports, which make no garbage to speak of
    for name in WAKES_CUDA:
        open_later(name)
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    from transformers import Trainer, TrainingArguments  # noqa: F401

    from autotune.probe.device import capabilities  # noqa: F401
    from autotune.probe.train import run  # noqa: F401
    from autotune.workload import read  # noqa: F401

    # Frozen objects are not touched by the children's collector, which would copy their pages.
    gc.collect()
    gc.freeze()
    gc.enable()


def _reasons_not_to_fork() -> dict[str, Any]:
    """{"refused": why} if a fork would not be safe."""
    torch = sys.modules.get("torch")  # not there with SPAWN
    is_awake = torch is not None and torch.cuda.is_initialized()
    reason = why_not_fork(is_awake, _read_each("fd", os.readlink), _other_threads())
    return {"refused": reason} if reason else {}


def why_not_fork(cuda_is_initialized: bool, open_files: Sequence[str], threads: Sequence[str]) -> str:
    """Reason why a fork would not be safe: CUDA is initialized, or another thread may hold a lock; empty if it is safe.

    Torch does not know of a `cuInit` by others; the driver opens UVM_DEVICE for it, which NVML does not. threads: names of
    those other than the main one.
    """
    devices = sorted({path for path in open_files if path.startswith("/dev/nvidia")})
    if cuda_is_initialized or UVM_DEVICE in devices:
        opened = f" (open: {', '.join(devices)})" if devices else ""
        return f"an import woke CUDA in the process that starts probes{opened}"
    if not threads:
        return ""
    return f"imports left threads running in the process that starts probes: {', '.join(sorted({*threads}))}"


def _other_threads() -> list[str]:
    main = str(os.getpid())
    names = _read_each("task", lambda path: "" if path.name == main else (path / "comm").read_text().strip())
    return list(filter(None, names))


def _read_each(kind: str, read: Callable[[Path], str]) -> list[str]:
    """Results of `read` for each entry in this process's folder of that kind, without entries that are gone by then."""
    values = []
    for path in Path("/proc/self", kind).iterdir():
        with contextlib.suppress(OSError):
            values.append(read(path))
    return values


def _serve(channel: socket.socket) -> None:
    parent = Parent()
    reader = channel.makefile("rb")
    while line := reader.readline():
        message = json.loads(line)
        if "process_state" in message:
            parent.process_state = message["process_state"]
            parent.objects = reader.read(message["objects"])
        elif "order" in message:
            folder = Path(message["order"])
            order = Order.from_dict(read_json(folder / ORDER), folder)
            if refused := _reasons_not_to_fork():
                _say(channel, refused)
                continue
            _say(channel, Children(order, parent, channel).carry_out())


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


class Children:
    """The processes of an order, one a rank, from their fork to their end. channel: the host's, which they close."""

    def __init__(self, order: Order, parent: Parent, channel: socket.socket) -> None:
        self._order = order
        self._scratch = Path(tempfile.mkdtemp(prefix="probe-"))
        self._shared_memory = cleanup.shared_memory()
        self._log = os.open(Path(order.folder) / LOG, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o666)
        port, host = free_port() if order.ranks > 1 else 0, os.getpid()
        self._pids: list[int] = []
        self._codes: list[int | None] = [None] * order.ranks
        for rank in range(order.ranks):
            self._pids.append(os.fork())
            if self._pids[-1] == 0:
                run_child(order, parent, host, self._scratch, self._log, channel, rank, port)

    def carry_out(self) -> dict[str, Any]:
        """Watch them to the end of the order: the fields of its `ExitInfo`, once everything is cleared away."""
        kills_before, started = cleanup.kernel_oom_kills(), time.monotonic()
        ended = self._watch(started + self._order.deadline_s)
        self._end()
        return {
            "ended": ended,
            "codes": self._codes,
            "seconds": time.monotonic() - started,
            "kernel_oom_kills": cleanup.kernel_oom_kills() - kills_before,
        }

    def _end(self) -> None:
        """End them and everything below, and remove what they left."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        cleanup.end_descendants()
        shorten(self._log)
        os.close(self._log)
        cleanup.remove_left_shared_memory(self._shared_memory)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _watch(self, deadline: float) -> str:
        """Wait for them and note their exit codes: "exited" or "timed out".

        They have exited, too, once one of several has failed: the others would wait for it until the deadline.
        """
        while (left := deadline - time.monotonic()) > 0:
            signal.sigtimedwait([signal.SIGCHLD], min(left, LOOK_S))
            shorten(self._log)
            self._collect()
            if None not in self._codes or _one_failed(self._codes, Path(self._order.folder)):
                return "exited"
        return "timed out"

    def _collect(self) -> None:
        """Note the exit code of each child that has ended."""
        for rank, pid in enumerate(self._pids):
            if self._codes[rank] is None:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self._codes[rank] = os.waitstatus_to_exitcode(status)


def shorten(log: int) -> None:
    """Leave the beginning and the end of a long log, which others may append to."""
    size = os.fstat(log).st_size
    if size > LOG_HEAD + 2 * LOG_TAIL:
        tail = os.pread(log, LOG_TAIL, size - LOG_TAIL)
        os.ftruncate(log, LOG_HEAD)
        with contextlib.suppress(OSError):  # the disk is full
            os.write(log, f"\n... {size - LOG_HEAD - LOG_TAIL} bytes left out ...\n".encode() + tail)


def _one_failed(codes: list[int | None], folder: Path) -> bool:
    """True if a rank that has ended left something else than what it was asked for."""
    return any(code is not None and (code != 0 or not _answered(folder, rank)) for rank, code in enumerate(codes))


def _answered(folder: Path, rank: int) -> bool:
    """True if this rank's reply is not a failure."""
    try:
        reply = read_json(folder / answer_name(rank))
    except (OSError, ValueError):
        return False
    completed = Outcome.COMPLETED.value
    return isinstance(reply, dict) and "error" not in reply and reply.get("outcome", completed) == completed


if __name__ == "__main__":
    main()
