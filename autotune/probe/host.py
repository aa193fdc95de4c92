"""The host: imports torch and transformers once, and forks a fresh process for each order.

    parent ==socket==> host (one thread, CUDA never awake, child subreaper)
                        ├─ fork ─> child 1   session of its own; answers by file, logs to a pipe
                        └─ fork ─> child 2   ... only after everything below child 1 is gone

When the socket closes, everything below the host is ended and the host with it: a killed parent leaves nothing.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import types
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from autotune.probe import sweep
from autotune.probe.order import ANSWER, LOG, ORDER, Order, read_json, write_json

PARENT_ENVIRONMENT = "AUTOTUNE_PARENT_ENVIRONMENT"
"""Carries the variables as the parent has them, for the children; the host itself needs others."""

LOG_HEAD, LOG_TAIL = 1_000_000, 200_000
"""Bytes of a probe's output that are kept from its beginning and its end: a flood must not fill the disk."""

WAKES_CUDA = ("bitsandbytes", "torchao")
"""Libraries that initialise CUDA when they are imported, which others (peft, by way of transformers) do."""

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> NoReturn:
    """`python -m autotune.probe.host FD`: serve the socket with that file descriptor until it closes."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        _say(channel, {"refused": "the kernel grants no child subreaper"})
        os._exit(1)
    before = sweep.shared_memory()
    scratch = Path(tempfile.gettempdir())
    _import_libraries()
    try:
        _say(channel, {"ready": True, "pid": os.getpid()} | _reasons_not_to_fork())
        _serve(channel)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        # The parent is done or gone: nothing of ours outlives this process.
        sweep.end_descendants()
        sweep.remove_left_shared_memory(before)
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


def _import_libraries() -> None:
    """What every probe needs and nothing that wakes CUDA."""
    for name in WAKES_CUDA:
        open_later(name)
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    from transformers import Trainer, TrainingArguments  # noqa: F401

    from autotune.probe import capabilities, preparation, training  # noqa: F401

    # Frozen objects are not touched by the children's collector, which would copy their pages.
    gc.collect()
    gc.freeze()


def open_later(name: str) -> None:
    """Let `import name` succeed and run the library's code only when something in it is used: in a child."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is not None:
        sys.modules[name] = _OpenedLater(name)
        sys.modules[name].__spec__, sys.modules[name].__file__ = spec, spec.origin


class _OpenedLater(types.ModuleType):
    """What `import name` gave to others in the host; a child's own imports no longer meet it."""

    def __getattr__(self, attribute: str) -> Any:
        # Some look for names like __warningregistry__ in every module there is.
        if attribute.startswith("__") and attribute not in ("__path__", "__version__", "__all__"):
            raise AttributeError(attribute)
        forget_opened_later()
        opened = importlib.import_module(self.__name__)
        self.__dict__.update(opened.__dict__)
        return getattr(opened, attribute)


def forget_opened_later() -> None:
    """Let the next `import` open these libraries."""
    for name in WAKES_CUDA:
        if isinstance(sys.modules.get(name), _OpenedLater):
            del sys.modules[name]


def _reasons_not_to_fork() -> dict[str, Any]:
    """{"refused": why} where a fork would not be safe: CUDA is awake, or another thread may hold a lock."""
    import torch

    if torch.cuda.is_initialized():
        return {"refused": "CUDA is already awake in the process that starts probes"}
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        names = [Path(f"/proc/self/task/{one}/comm").read_text().strip() for one in os.listdir("/proc/self/task")]
        return {"refused": f"the process that starts probes has {threads} threads ({', '.join(names)})"}
    return {}


def _serve(channel: socket.socket) -> None:
    objects = b""
    reader = channel.makefile("rb")
    while line := reader.readline():
        message = json.loads(line)
        if "objects" in message:
            objects = reader.read(message["objects"])
        elif "order" in message:
            refused = _reasons_not_to_fork()
            _say(channel, refused or _run(Path(message["order"]), channel, objects))


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _run(folder: Path, channel: socket.socket, objects: bytes) -> dict[str, Any]:
    """Fork a child for the order in this folder, watch it to its end, and clear everything away."""
    order = Order.from_dict(read_json(folder / ORDER), folder)
    scratch = Path(tempfile.mkdtemp(prefix="probe-"))
    before, kills_before = sweep.shared_memory(), _kernel_oom_kills()
    log_read, log_write = os.pipe()
    wake_read, wake_write = socket.socketpair()
    wake_read.setblocking(False)
    wake_write.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(
            order, objects, scratch, log_write, [channel.fileno(), log_read, wake_read.fileno(), wake_write.fileno()]
        )
    os.close(log_write)
    log = _Log(folder / LOG, log_read)
    ended, code = _watch(pid, channel, wake_read, log, started + order.deadline_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    left = sweep.end_descendants()
    log.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wake_read.close()
    wake_write.close()
    sweep.remove_left_shared_memory(before)
    shutil.rmtree(scratch, ignore_errors=True)
    if ended == "parent gone":
        raise BrokenPipeError
    return {
        "ended": ended,
        "code": code,
        "seconds": time.monotonic() - started,
        "left": left,
        "kernel_oom_kills": _kernel_oom_kills() - kills_before,
    }


def _watch(
    pid: int, channel: socket.socket, wake: socket.socket, log: "_Log", deadline: float
) -> tuple[str, int | None]:
    """Wait for the child: ("exited", exit code or -signal), ("timed out", None) or ("parent gone", None)."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return "timed out", None
        watched: list[Any] = [channel, wake, *log.open_fds()]
        ready, _, _ = select.select(watched, [], [], left)
        log.drain()
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return "exited", os.waitstatus_to_exitcode(status)
        if channel in ready and not channel.recv(1, socket.MSG_PEEK):
            return "parent gone", None


class _Log:
    """A probe's output: its beginning goes to the file as it comes, of the rest only the end is kept."""

    def __init__(self, path: Path, fd: int) -> None:
        self._fd: int | None = fd
        os.set_blocking(fd, False)
        self._file = path.open("wb", buffering=0)
        self._written = self._left_out = 0
        self._tail: deque[bytes] = deque()

    def open_fds(self) -> list[int]:
        return [] if self._fd is None else [self._fd]

    def drain(self) -> None:
        """Take what is there, at most a few chunks, so that a flood cannot keep the host from its deadline."""
        for _ in range(16):
            if self._fd is None:
                return
            try:
                chunk = os.read(self._fd, 65536)
            except BlockingIOError:
                return
            if not chunk:
                os.close(self._fd)
                self._fd = None
                return
            self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        head, rest = chunk[: LOG_HEAD - self._written], chunk[max(0, LOG_HEAD - self._written) :]
        if head:
            self._written += len(head)
            with contextlib.suppress(OSError):  # a full disk must not end the probe
                self._file.write(head)
        if rest:
            self._tail.append(rest)
            while sum(map(len, self._tail)) - len(self._tail[0]) > LOG_TAIL:
                self._left_out += len(self._tail.popleft())

    def close(self) -> None:
        self.drain()
        if self._fd is not None:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            if self._left_out:
                self._file.write(f"\n... {self._left_out} bytes left out ...\n".encode())
            self._file.write(b"".join(self._tail))
        self._file.close()


def _kernel_oom_kills() -> int:
    """How many processes the kernel has ended for want of memory, as far as it tells."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
    return total


# In the child --------------------------------------------------------------------------------------------------


def _child(order: Order, objects: bytes, scratch: Path, log: int, close: list[int]) -> NoReturn:
    """Become a probe: a session of its own, the parent's environment, its own scratch; answer and leave at once."""
    code = 1
    try:
        started = time.monotonic()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect(log)
        for fd in close:
            os.close(fd)
        print(f"{order.kind} {order.number} started", flush=True)
        _enter_parent_environment(scratch)
        forget_opened_later()
        Path("/proc/self/oom_score_adj").write_text("1000")
        answer = _answer(order, objects, started, scratch)
        write_json(Path(order.folder) / ANSWER, answer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _answer(order: Order, objects: bytes, started: float, scratch: Path) -> dict[str, Any]:
    from autotune.errors import AutotuneError
    from autotune.probe import capabilities, preparation, training
    from autotune.probe.user_objects import user_workload
    from autotune.request import TuningRequest

    try:
        if order.kind == "probe":
            return training.run(order, objects, started, scratch).to_dict()
        if order.kind == "capabilities":
            return {"value": capabilities.read(order).to_dict()}
        request = TuningRequest.from_dict(order.request["request"])
        workload = (
            user_workload(request, objects) if objects else preparation.prepare(request, Path(order.request["cache"]))
        )
        return {"value": workload.to_dict()}
    except AutotuneError as error:
        return {"error": type(error).__name__, "message": error.message, "advice": error.advice}


def _redirect(log: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        # Not closed: they live as long as the process.
        stream = open(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _enter_parent_environment(scratch: Path) -> None:
    """The parent's variables (as `launcher.inherited` leaves them), path and folder."""
    parent = json.loads(os.environ[PARENT_ENVIRONMENT])
    mark = os.environ[sweep.MARK]
    os.environ.clear()
    os.environ |= parent["environment"]
    os.environ |= {"TMPDIR": str(scratch), "HF_HUB_DISABLE_TELEMETRY": "1", sweep.MARK: mark}
    tempfile.tempdir = str(scratch)
    sys.path[:] = parent["path"]
    with contextlib.suppress(OSError):
        os.chdir(parent["folder"])
    _give_threads_back()


def _give_threads_back() -> None:
    """The host runs numpy's BLAS on one thread so that it may fork; a training would have them all."""
    import threadpoolctl

    if "OPENBLAS_NUM_THREADS" not in os.environ:
        threadpoolctl.threadpool_limits(len(os.sched_getaffinity(0)), user_api="blas")


if __name__ == "__main__":
    main()
