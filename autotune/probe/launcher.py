"""The parent's side: starts the host, sends orders, keeps deadlines, and turns every end into a Measurement."""

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
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import errors
from autotune.errors import AutotuneError, ProbeHostFailed, StorageFailed
from autotune.measurement import Measurement, Outcome
from autotune.probe import failures, sweep
from autotune.probe.order import (
    ANSWER,
    CHILD_ANSWER,
    LOG,
    ORDER,
    Order,
    answer_name,
    read_json,
    remove_answers,
    write_json,
)
from autotune.probe.ranks import decisive, of_rank, together, value_together

GRACE_S = 20.0
"""How long after a probe's deadline the host may take to clear up before it counts as hung itself."""

CLOSE_S = 10.0
"""How long the host may take to end what is below it and leave."""

START_S = 180.0
"""How long the host may take to import torch and transformers: minutes on a cold network disk."""

_NOT_INHERITED = re.compile(
    r"ACCELERATE_.*|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE"
)


class ProbeHost:
    """The process that forks probes; starts itself when first asked and again where it died. Use as a context.

    An order that needs variables which a process must be started with gets a host that was: one for all such orders, kept
    beside this one to the end. Still only one probe runs at a time.
    """

    def __init__(self, objects: bytes = b"", variables: Mapping[str, str] | None = None) -> None:
        self._objects = objects
        self._variables = dict(variables or {})
        self._others: dict[tuple[tuple[str, str], ...], ProbeHost] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._token = ""
        self._scratch = ""
        self._shared_memory: frozenset[str] = frozenset()

    def __enter__(self) -> "ProbeHost":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The host's process id while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the host; raises ProbeHostFailed where it cannot be or refuses to fork. Returns once it is ready."""
        self._token = secrets.token_hex(8)
        self._scratch = tempfile.mkdtemp(prefix="autotune-")
        self._shared_memory = sweep.shared_memory()
        ours, theirs = socket.socketpair()
        with theirs, (Path(self._scratch) / "host.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "autotune.probe.host", str(theirs.fileno())],
                env=_host_environment(self._token, self._scratch) | self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._channel = ours
        self._buffer = b""
        ready = self._receive(START_S)
        if ready is None or "refused" in ready:
            said = (Path(self._scratch) / "host.log").read_text(errors="replace").strip().splitlines()
            self.close()
            why = (ready or {}).get("refused") or (said[-1] if said else "it said nothing")
            raise ProbeHostFailed(f"The process that starts probes failed: {why}.", "See `autotune doctor`.")
        told = {"surroundings": _surroundings(self._variables), "objects": len(self._objects)}
        ours.sendall(json.dumps(told).encode() + b"\n" + self._objects)

    def run(self, order: Order) -> dict[str, Any] | None:
        """Send an order and wait for its end: the host's account of it, None where the host itself is gone or hung."""
        if dict(order.host_environment) != self._variables:
            return self._run_elsewhere(order)
        if self._process is None:
            self.start()
        assert self._channel is not None
        folder = Path(order.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ANSWER).unlink(missing_ok=True)
            remove_answers(folder)
            write_json(folder / ORDER, replace(order, sent_at=time.monotonic()).to_dict())
        except OSError as error:
            raise StorageFailed(
                f"{folder} cannot be written: {error.strerror}.", "Free space, or name another --output-dir."
            ) from error
        try:
            self._channel.sendall(json.dumps({"order": str(folder)}).encode() + b"\n")
            account = self._receive(order.deadline_s + GRACE_S)
        except OSError:
            account = None
        except BaseException:  # interrupted: its late answer must not be taken for the next order's
            self.close()
            raise
        if account is not None and "refused" in account:
            raise ProbeHostFailed(f"No probe can be started safely: {account['refused']}.", "Report this as a bug.")
        if account is None:
            self.close()
        return account

    def _run_elsewhere(self, order: Order) -> dict[str, Any] | None:
        """Have it run by a host that was started with its variables; one that cannot be started so ends no search."""
        variables = dict(order.host_environment)
        other = self._others.setdefault(tuple(sorted(variables.items())), ProbeHost(self._objects, variables))
        begun = time.monotonic()
        try:
            return other.run(order)
        except ProbeHostFailed as error:
            said = " ".join(f"{name}={value}" for name, value in variables.items())
            reason = f"no process can be started with {said}: {error.written[0]}"
            return {"ended": "not started", "reason": reason, "seconds": time.monotonic() - begun}

    def attempt(self, order: Order) -> tuple[Any, failures.Failure | None]:
        """(value, None) of an order that trains something else than a probe, or (None, why it failed)."""
        account = self.run(order)
        folder = Path(order.folder)
        ends = [_value_of(order, rank, account) for rank in range(order.ranks)]
        known = [(value, failure) for value, failure in ends if value is not None or failure is not None]
        failed = [failure for _, failure in known if failure is not None]
        if failed:
            return None, failed[decisive(failed)]
        values = [value for value, _ in known]
        if len(values) < order.ranks:
            return None, _failure(account, 0, _log_tail(folder))
        return values[0] if order.ranks == 1 else value_together(order.kind, values), None

    def scratch_folder(self) -> Path:
        """A new folder that is gone with the host, however this process ends."""
        if self._process is None:
            self.start()
        return Path(tempfile.mkdtemp(prefix="ask-", dir=self._scratch))

    def ask(self, order: Order) -> Any:
        """The value of a `prepare` or `capabilities` order; raises the child's own error, or ProbeHostFailed."""
        account = self.run(order)
        folder = Path(order.folder)
        try:
            answer = read_json(folder / CHILD_ANSWER)
        except (OSError, ValueError):
            tail = _log_tail(folder)
            failure = _failure(account, 0, tail)
            raise ProbeHostFailed(
                f"Reading the {'device' if order.kind == 'capabilities' else 'model and data'} failed: {failure.reason}.",
                f"The end of its output:\n{tail.strip()}",
            ) from None
        if "error" in answer:
            kind: type[AutotuneError] = getattr(errors, answer["error"], AutotuneError)
            raise kind(answer["message"], answer["advice"])
        return answer["value"]

    def close(self) -> None:
        """End the host and everything below it; nothing is left in processes, shared memory or temporary folders."""
        for other in self._others.values():
            other.close()
        self._others.clear()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_S)
            self._process.kill()
            self._process.wait()
            sweep.end_marked(self._token)
            sweep.remove_left_shared_memory(self._shared_memory)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._process = self._channel = None

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The host's next line, None where it closed the channel or the seconds are over."""
        assert self._channel is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._channel.settimeout(left)
            try:
                chunk = self._channel.recv(65536)
            except TimeoutError:
                return None
            except OSError:
                return None
            finally:
                self._channel.settimeout(None)
            if not chunk:
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables without those that change precision or make a process a rank.

    The host must not see them either: torch reads some while it is imported.
    """
    return {name: value for name, value in environment.items() if not _NOT_INHERITED.fullmatch(name)}


def _surroundings(variables: Mapping[str, str]) -> dict[str, Any]:
    """What the children are given back: they run as if the caller had started them, with these variables."""
    return {
        "environment": {**inherited(os.environ), **variables},
        "path": [path or os.getcwd() for path in sys.path],
        "folder": os.getcwd(),
    }


def _host_environment(token: str, scratch: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if root.endswith(("site-packages", "dist-packages")):
        paths.remove(root)  # found without help; ahead of the standard library it would shadow it
    return inherited(os.environ) | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": scratch,
        # One thread, so that forking is safe; the children get their threads back.
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
        "PYTHONUNBUFFERED": "1",
        sweep.MARK: token,
    }


def read_answer(order: Order, account: Mapping[str, Any] | None) -> Measurement:
    """The children's measurement where they left a valid one in time, else what their ends mean."""
    seconds = float(account["seconds"]) if account else order.deadline_s
    if account is not None and account["ended"] != "exited":
        return _failed(order, _failure(account, 0, _log_tail(Path(order.folder))), seconds)
    ends = [end for rank in range(order.ranks) if (end := _end_of(order, rank, account, seconds)) is not None]
    completed = [end for end in ends if end.outcome is Outcome.COMPLETED]
    if len(completed) < order.ranks:
        return ends[decisive(ends)]
    return together(completed) if order.ranks > 1 else completed[0]


def _end_of(order: Order, rank: int, account: Mapping[str, Any] | None, seconds: float) -> Measurement | None:
    """What this rank left, or what its end means; None where it was well, and ended because another one failed."""
    folder, several = Path(order.folder), order.ranks > 1
    tail = _log_tail(folder)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        answer = replace(Measurement.from_dict(read_json(folder / answer_name(rank))), probe_seconds=seconds)
        if answer.outcome is Outcome.COMPLETED:
            return answer
        answer = replace(answer, reason=f"rank {rank}: {answer.reason}") if several else answer
        return _with_log(answer, account, tail)
    if several and account is not None and account["codes"][rank] is None:
        return None
    failure = _failure(account, rank, tail)
    return _failed(order, of_rank(rank, failure) if several else failure, seconds)


def _failed(order: Order, failure: failures.Failure, seconds: float) -> Measurement:
    if failure.outcome is Outcome.TIMED_OUT:
        failure = replace(failure, reason=f"not done after {order.deadline_s:.0f} s")
    made = order.configuration
    return Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=made.gradient_accumulation_steps if made else 1,
        accumulation_steps_run=order.accumulation_steps_run,
        data_parallel_size=made.data_parallel_size if made else 1,
        allowed_bytes=order.allowed_bytes,
        refused_bytes=failure.refused_bytes,
        probe_seconds=seconds,
        log_tail=_log_tail(Path(order.folder)),
    )


def _value_of(order: Order, rank: int, account: Mapping[str, Any] | None) -> tuple[Any, failures.Failure | None]:
    """(a rank's value, None), (None, why there is none), or (None, None) where it ended because another one failed."""
    folder, several = Path(order.folder), order.ranks > 1
    if account is None or account["ended"] == "exited":
        with contextlib.suppress(OSError, ValueError, KeyError):
            answer = read_json(folder / answer_name(rank))
            if "value" in answer:
                return answer["value"], None
            failure = failures.Failure(Outcome(answer["outcome"]), answer["reason"], answer["where"])
            return None, of_rank(rank, failure) if several else failure
        if several and account is not None and account["codes"][rank] is None:
            return None, None
    failure = _failure(account, rank, _log_tail(folder))
    return None, of_rank(rank, failure) if several and failure.outcome is not Outcome.TIMED_OUT else failure


def _with_log(answer: Measurement, account: Mapping[str, Any] | None, tail: str) -> Measurement:
    """The child's account of its failure with what it printed, and with what only the host could see."""
    kills = account.get("kernel_oom_kills", 0) if account else 0
    if answer.outcome is Outcome.CRASHED and failures.worker_killed_for_memory(tail, kills):
        answer = replace(answer, outcome=Outcome.OUT_OF_MEMORY, where="data")
    return replace(answer, log_tail=tail)


def _failure(account: Mapping[str, Any] | None, rank: int, tail: str) -> failures.Failure:
    if account is None:
        return failures.Failure(Outcome.CRASHED, "the process that starts probes died or hung")
    if account["ended"] == "not started":
        return failures.Failure(Outcome.UNSUPPORTED, account["reason"], "start")
    if account["ended"] == "timed out":
        return failures.Failure(Outcome.TIMED_OUT, f"not done after {account['seconds']:.0f} s")
    return failures.from_exit(account["codes"][rank], account["kernel_oom_kills"], tail)


def _log_tail(folder: Path, size: int = 4000) -> str:
    with contextlib.suppress(OSError), (folder / LOG).open("rb") as file:
        file.seek(max(0, (folder / LOG).stat().st_size - size))
        return file.read().decode(errors="replace")
    return ""
