"""The host of child processes as the parent sees it: started, sent orders, held to deadlines."""

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Self

from autotune.core import failures, interrupt, write_json
from autotune.core.errors import ProbeHostFailed, StorageFailed
from autotune.core.time_limit import TimeLimit
from autotune.probe import ExitInfo
from autotune.probe.device.nvml import kept_initialized
from autotune.probe.order import ORDER, Order, remove_answers, remove_unfinished
from autotune.probe.process import cleanup
from autotune.probe.process.answers import advice_on, ended_from_outside

GRACE_S = 20.0
"""Seconds after a probe's deadline that the host may take to clear up before it counts as hung itself."""

CHECK_S = 1.0
"""Seconds between checks for a signal that asks the command to end, while the host is waited for."""

CLOSE_S = 10.0
"""Seconds that the host may take to end its child processes and exit."""

START_S = 180.0
"""Seconds that the host may take to import torch and transformers: minutes on a cold network disk."""

ROOT = [root] if not (root := str(Path(__file__).parents[3])).endswith(("site-packages", "dist-packages")) else []
"""The folder of this package, if Python does not find it without help: ahead of the standard library it would shadow that."""

REPEATS = 2
"""Largest number of repeats of an order that something else killed: a third kill is taken as intended. Of a host that
something stopped, which takes the whole deadline to be seen, it is one."""

_NOT_INHERITED = re.compile(
    r"ACCELERATE_.*|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE"
    r"|RAY_AUTH_TOKEN(_PATH)?"  # the key to a cluster, which no training needs
)


class ProbeHost:
    """The process that forks probes; starts itself when first asked and again if it died. Use as a context.

    objects: the caller's, pickled. variables: that the process is started with. cores: that it and its children run on; none:
    the caller's. As a context it is launched at once, and imports its libraries while the caller goes on.
    """

    uses_cache = True

    def __init__(self, objects: bytes = b"", variables: Mapping[str, str] | None = None) -> None:
        self.time_limit = TimeLimit()
        self.cores = self._runs_on = frozenset[int]()
        self._is_abandoned = False
        self._objects = objects
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._output: IO[bytes] | None = None
        self._pid: int | None = None
        self._token = secrets.token_hex(8)
        self._kept = contextlib.ExitStack()
        self._scratch = str(cleanup.scratch_folder(self._token))
        self._shared_memory: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        self._kept.enter_context(kept_initialized())
        if self._channel is None:
            self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        self.close()

    @property
    def pid(self) -> int | None:
        """The host's process id while it runs."""
        return self._pid

    def launch(self) -> None:
        """Let the host start, without waiting until it is ready. Raises ProbeHostFailed if there is no /proc."""
        if self._is_abandoned:
            raise ProbeHostFailed("The process that starts probes was ended.", "Run the same command again to resume.")
        if not Path("/proc/self/status").exists():
            raise ProbeHostFailed(
                "/proc cannot be read here: memory and processes are measured by it.",
                "Mount it: mount -t proc proc /proc.",
            )
        cleanup.remove_left_scratch()
        self._shared_memory = cleanup.shared_memory()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the host; of no name, so never left behind)
        environment = _host_environment(self._token, self._scratch) | self._variables
        with on_cores(self.cores):
            self._process, self._channel = supervised([self._scratch], environment, self._output)
        self._runs_on, self._buffer = self.cores, b""

    def start(self) -> None:
        """Start the host; raises ProbeHostFailed if it cannot be or refuses to fork. Returns once it is ready."""
        if self._channel is None:
            self.launch()
        ready = self._receive(self.time_limit.cut(START_S))
        if ready is None or "ready" not in ready or "refused" in ready:
            output = self._output_end()
            self.close()
            self.time_limit.check("anything could be measured")
            raise _not_started(ready, output)
        self._pid = ready["pid"]
        state = {"process_state": _process_state(self._variables), "objects": len(self._objects)}
        self._send(json.dumps(state).encode() + b"\n" + self._objects)

    def _send(self, message: bytes) -> None:
        assert self._channel is not None
        with contextlib.suppress(OSError):  # it has ended: its next message says how
            self._channel.sendall(message)

    def run(self, order: Order) -> ExitInfo:
        """Carry an order out, and up to twice more if something else killed or stopped it: how it ended.

        Raises ProbeHostFailed if no host can be started, StorageFailed if the order's folder cannot be written.
        """
        end = self._run(order)
        for again in range(REPEATS):
            if not ended_from_outside(end) or (again and end.ended == "host hung"):
                break
            end = replace(self._run(order), killed=again + 1)
        return end

    def _run(self, order: Order) -> ExitInfo:
        """Send an order and wait for its end."""
        interrupt.check()
        if self._pid is None:
            self.start()
        if self._runs_on != self.cores:
            with contextlib.suppress(OSError):  # it has ended
                os.sched_setaffinity(self._pid or -1, self.cores)
            self._runs_on = self.cores
        order = replace(order, deadline_s=self.time_limit.cut(order.deadline_s))
        write_order(order)
        begun = time.monotonic()
        self._send(json.dumps({"order": order.folder}).encode() + b"\n")
        try:
            message = self._receive(order.deadline_s + GRACE_S)
        except BaseException:  # interrupted: its late reply must not be taken for the next order's
            self.close()
            raise
        if message is not None and "refused" in message:
            raise _refused(message["refused"])
        if message is not None and "ended" in message:
            return ExitInfo(**message)
        end = ExitInfo("host hung", time.monotonic() - begun)
        if message is not None:
            output, code = self._output_end(), message["host_ended"]
            end = replace(
                end, ended="host ended", codes=[code], output=output, kernel_oom_kills=message["kernel_oom_kills"]
            )
        self.close()
        return end

    def background_host(self) -> "ProbeHost":
        """A further host, for orders that take no device, from another thread: it has one thread."""
        other = ProbeHost(variables={"OMP_NUM_THREADS": "1"})
        other.time_limit = self.time_limit
        return other

    def scratch_folder(self) -> Path:
        """A new folder that is gone with the host, however this process ends."""
        if self._pid is None:
            self.start()
        with contextlib.suppress(FileNotFoundError):
            return Path(tempfile.mkdtemp(prefix="ask-", dir=self._scratch))
        self.close()  # the host was killed, and its folder removed
        self.start()
        return Path(tempfile.mkdtemp(prefix="ask-", dir=self._scratch))

    def abandon(self) -> None:
        """End what runs, from any thread, and start nothing more."""
        self._is_abandoned = True
        if (channel := self._channel) is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)  # its supervisor ends all that is below it

    def close(self) -> None:
        """End the host and everything below it; nothing is left in processes, shared memory or temporary folders."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            self._process.kill()
            self._process.wait()
            cleanup.end_marked(self._token)
            cleanup.remove_left_shared_memory(self._shared_memory)
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._output is not None:
            self._output.close()
        self._process = self._channel = self._output = self._pid = None

    def _output_end(self) -> str:
        """The end of what the host has printed."""
        assert self._output is not None
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The host's next line, or how it ended; None if the seconds are over."""
        assert self._channel is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0:
                return None
            interrupt.check()
            self._channel.settimeout(min(left, CHECK_S))
            try:
                chunk = self._channel.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                chunk = b""
            finally:
                self._channel.settimeout(None)
            if not chunk:  # the supervisor was killed, and the host with it
                assert self._process is not None
                return {"host_ended": self._process.wait(CLOSE_S), "kernel_oom_kills": 0}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class HostSet:
    """Hosts by the variables that they were started with: each order goes to the host of its `host_environment`.

    Only one order runs at a time. cores: as of a ProbeHost. As a context the host without variables is launched at once, and
    all end with the context.
    """

    uses_cache = True

    def __init__(self, objects: bytes = b"", cores: frozenset[int] = frozenset()) -> None:
        self.time_limit, self.cores, self.objects = TimeLimit(), cores, objects
        self._abandoned = threading.Event()
        self._hosts: dict[frozenset[tuple[str, str]], ProbeHost] = {}

    def __enter__(self) -> Self:
        self._host().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _host(self, variables: Mapping[str, str] = MappingProxyType({})) -> ProbeHost:
        """The host with these variables, which may not have been started yet."""
        key = frozenset(variables.items())
        if key not in self._hosts:
            self._hosts[key] = ProbeHost(self.objects, variables)
        host = self._hosts[key]
        host.time_limit, host.cores = self.time_limit, self.cores
        return host

    def run(self, order: Order) -> ExitInfo:
        """`ProbeHost.run`; a host that cannot be started with an order's variables ends that order alone."""
        host, begun = self._host(order.host_environment), time.monotonic()
        try:
            return host.run(order)
        except ProbeHostFailed as error:
            if not order.host_environment:
                raise
            variables = " ".join(f"{name}={value}" for name, value in order.host_environment.items())
            reason = f"no process can be started with {variables}: {error.message}"
            return ExitInfo("not started", time.monotonic() - begun, reason=reason)

    def scratch_folder(self) -> Path:
        """`ProbeHost.scratch_folder` of the host without variables."""
        return self._host().scratch_folder()

    def background_host(self) -> ProbeHost:
        """`ProbeHost.background_host`."""
        return self._host().background_host()

    @property
    def is_abandoned(self) -> bool:
        """True once `abandon` was called."""
        return self._abandoned.is_set()

    def abandon(self) -> None:
        """`ProbeHost.abandon` of all hosts."""
        self._abandoned.set()
        for host in [*self._hosts.values()]:
            host.abandon()

    def close(self) -> None:
        """End all hosts."""
        for host in self._hosts.values():
            host.__exit__()


def supervised(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """(supervisor of a host or a command, the socket that ends it and all below it once it is closed).

    arguments: folder for temporary files, command; see `supervisor.main`.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.probe.process.supervisor", str(theirs.fileno()), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return process, ours


@contextlib.contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Within, this thread and what it starts run on these cores; on all that it had if there are none."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def write_order(order: Order) -> None:
    """Write the order into its folder, and remove what an earlier one left there; raises StorageFailed."""
    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_answers(folder)
        remove_unfinished(folder)
        write_json(folder / ORDER, replace(order, sent_at=time.monotonic()).to_dict())
    except OSError as error:
        raise StorageFailed(
            f"{folder} cannot be written: {error.strerror}.", "Free space, or name another --output-dir."
        ) from error


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that change precision or make a process a rank, and with the hub's telemetry off.

    Of the host too: torch and huggingface_hub read theirs while they are imported.
    """
    kept = {name: value for name, value in environment.items() if not _NOT_INHERITED.fullmatch(name)}
    return {**kept, "HF_HUB_DISABLE_TELEMETRY": "1"}


def _process_state(variables: Mapping[str, str]) -> dict[str, Any]:
    """State that the children are given: they run as if the caller had started them, with these variables."""
    return {
        "environment": {**inherited(os.environ), **variables},
        "path": [path or os.getcwd() for path in sys.path],
        "folder": os.getcwd(),
    }


def _host_environment(token: str, scratch: str) -> dict[str, str]:
    paths = [*ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return inherited(os.environ) | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": scratch,
        # One thread, so that forking is safe; the children get their threads back.
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
        "PYTHONUNBUFFERED": "1",
        cleanup.HOST_TOKEN: token,
    }


def _not_started(message: Mapping[str, Any] | None, output: str) -> ProbeHostFailed:
    """Reason why there is no host. message: its first, None if none came in time; output: the end of what it printed."""
    if message is None:
        failure, advice = f"not ready after {START_S:.0f} s", advice_on(None, output)
    elif "refused" in message:
        return _refused(message["refused"])
    else:
        code, kills = message["host_ended"], message["kernel_oom_kills"]
        failure = failures.from_exit(code, kills, output).reason
        advice = advice_on(code, output)
    return ProbeHostFailed(f"The process that starts probes failed: {failure}.", advice)


def _refused(reason: str) -> ProbeHostFailed:
    """The host can run and must not fork."""
    return ProbeHostFailed(
        f"No probe can be started safely: {reason}.",
        "Uninstall the package that does it, or set AUTOTUNE_SPAWN=1: "
        "each probe then imports all libraries by itself, which takes seconds.",
    )
