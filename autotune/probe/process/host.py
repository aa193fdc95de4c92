"""The host: imports torch and transformers once, and forks a fresh process for each order.

    parent ==socket==> host (one thread, CUDA never awake, child subreaper)
                        ├─ fork ─> child 1   session of its own; answers by file, logs to a pipe
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
import select
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
from autotune.probe.process.log import Log
from autotune.probe.process.ranks import free_port

THREADS_OK = "AUTOTUNE_THREADS_OK"
"""The user's variable with the names of threads beside which a fork is safe, by commas."""

SPAWN = "AUTOTUNE_SPAWN"
"""The user's variable: 1 lets each child import the libraries by itself, into a process that has none."""

UVM_DEVICE = "/dev/nvidia-uvm"


def main() -> NoReturn:
    """`python -m autotune.probe.process.host FD ALIVE SUPERVISOR`: serve the socket with that file descriptor until it closes.

    ALIVE: a descriptor to hold open while this process lives; SUPERVISOR: the process id of the one that started it.
    """
    channel, alive, supervisor = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    cleanup.end_with(supervisor)
    for fd in (channel.fileno(), alive):
        os.set_inheritable(fd, False)
    cleanup.become_subreaper()
    if os.environ.get(SPAWN) != "1":
        _import_libraries()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone, and so are we in a moment
        _say(channel, {"ready": True, "pid": os.getpid()} | _reasons_not_to_fork())
        _serve(channel, alive)
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
    harmless = os.environ.get(THREADS_OK, "").split(",")
    reason = why_not_fork(is_awake, _read_each("fd", os.readlink), _other_threads(), harmless)
    return {"refused": reason} if reason else {}


def why_not_fork(
    cuda_is_initialized: bool, open_files: Sequence[str], threads: Sequence[str], harmless: Sequence[str]
) -> str:
    """Reason why a fork would not be safe: CUDA is initialized, or another thread may hold a lock; empty if it is safe.

    Torch does not know of a `cuInit` by others; the driver opens UVM_DEVICE for it, which NVML does not. threads: names of
    those beside the main one. harmless: names of threads that do not count.
    """
    devices = sorted({path for path in open_files if path.startswith("/dev/nvidia")})
    if cuda_is_initialized or UVM_DEVICE in devices:
        opened = f" (open: {', '.join(devices)})" if devices else ""
        return f"an import woke CUDA in the process that starts probes{opened}"
    # The kernel keeps 15 characters of a thread's name.
    counted = sorted(set(threads) - {name.strip()[:15] for name in harmless})
    if not counted:
        return ""
    return f"imports left threads running in the process that starts probes: {', '.join(counted)}"


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


def _serve(channel: socket.socket, alive: int) -> None:
    parent = Parent()
    reader = channel.makefile("rb")
    while line := reader.readline():
        message = json.loads(line)
        if "surroundings" in message:
            parent.surroundings = message["surroundings"]
            parent.objects = reader.read(message["objects"])
        elif "order" in message:
            refused = _reasons_not_to_fork()
            _say(channel, refused or _run(Path(message["order"]), [channel.fileno(), alive], parent))


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _run(folder: Path, ours: list[int], parent: Parent) -> dict[str, Any]:
    """Fork the order's children, one a rank, watch them to their end, and clear everything away.

    ours: file descriptors that are none of theirs.
    """
    order = Order.from_dict(read_json(folder / ORDER), folder)
    scratch = Path(tempfile.mkdtemp(prefix="probe-"))
    before, kills_before = cleanup.shared_memory(), cleanup.kernel_oom_kills()
    log_read, log_write = os.pipe()
    wake_read, wake_write = socket.socketpair()
    wake_read.setblocking(False)
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started = time.monotonic()
    port = free_port() if order.ranks > 1 else 0
    host, ours = os.getpid(), [*ours, log_read, wake_read.fileno(), wake_write.fileno()]
    pids: list[int] = []
    for rank in range(order.ranks):
        pids.append(os.fork())
        if pids[-1] == 0:
            run_child(order, parent, host, scratch, log_write, ours, rank, port)
    os.close(log_write)
    log = Log(folder / LOG, log_read)
    ended, codes = _watch(pids, folder, wake_read, log, started + order.deadline_s)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    left = cleanup.end_descendants()
    log.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wake_read.close()
    wake_write.close()
    cleanup.remove_left_shared_memory(before)
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        "ended": ended,
        "codes": codes,
        "seconds": time.monotonic() - started,
        "left": left,
        "kernel_oom_kills": cleanup.kernel_oom_kills() - kills_before,
    }


def _watch(
    pids: list[int], folder: Path, wake: socket.socket, log: Log, deadline: float
) -> tuple[str, list[int | None]]:
    """Wait for the children: "exited" or "timed out", and each one's exit code or -signal, None if it still runs.

    They have exited, too, once one of several has failed: the others would wait for it until the deadline.
    """
    codes: list[int | None] = [None] * len(pids)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "timed out", codes
        watched: list[Any] = [wake, *log.open_fds()]
        ready, _, _ = select.select(watched, [], [], left)
        log.drain()
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
            _collect(pids, codes)
            if None not in codes or _one_failed(codes, folder):
                return "exited", codes


def _collect(pids: list[int], codes: list[int | None]) -> None:
    """Note the exit code of each child that has ended."""
    for rank, pid in enumerate(pids):
        if codes[rank] is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[rank] = os.waitstatus_to_exitcode(status)


def _one_failed(codes: list[int | None], folder: Path) -> bool:
    """True if a rank that has ended left something else than what it was asked for."""
    return any(code is not None and (code != 0 or not _answered(folder, rank)) for rank, code in enumerate(codes))


def _answered(folder: Path, rank: int) -> bool:
    """True if this rank's answer is not a failure."""
    try:
        answer = read_json(folder / answer_name(rank))
    except (OSError, ValueError):
        return False
    completed = Outcome.COMPLETED.value
    return isinstance(answer, dict) and "error" not in answer and answer.get("outcome", completed) == completed


if __name__ == "__main__":
    main()
