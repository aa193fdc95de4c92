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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune import errors
from autotune.configuration import Configuration
from autotune.environment import Environment
from autotune.errors import AutotuneError, ProbeHostFailed, StorageFailed
from autotune.measurement import Measurement, Outcome
from autotune.probe import ProbeOptions, failures, sweep
from autotune.probe.host import PARENT_ENVIRONMENT
from autotune.probe.order import ANSWER, CONFIRMATION, LOG, ORDER, Order, Timing, read_json, write_json
from autotune.training_arguments import model_arguments, process_environment, training_arguments
from autotune.workload import Workload

GRACE_S = 20.0
"""How long after a probe's deadline the host may take to clear up before it counts as hung itself."""

CLOSE_S = 10.0
"""How long the host may take to end what is below it and leave."""

START_S = 180.0
"""How long the host may take to import torch and transformers: minutes on a cold network disk."""

_NOT_INHERITED = re.compile(
    r"ACCELERATE_.*|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE"
)

MICRO_STEPS = 3
"""Micro-steps that tell first, middle and last apart: more accumulation is composed from them."""

READY_SHARE = 0.01
"""Share of a step spent waiting for workers' batches up to which the loader counts as keeping up."""


class ProbeHost:
    """The process that forks probes; starts itself when first asked and again where it died. Use as a context."""

    def __init__(self, objects: bytes = b"") -> None:
        self._objects = objects
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
                env=_host_environment(self._token, self._scratch),
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
        if self._objects:
            ours.sendall(json.dumps({"objects": len(self._objects)}).encode() + b"\n" + self._objects)

    def run(self, order: Order) -> dict[str, Any] | None:
        """Send an order and wait for its end: the host's account of it, None where the host itself is gone or hung."""
        if self._process is None:
            self.start()
        assert self._channel is not None
        folder = Path(order.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ANSWER).unlink(missing_ok=True)
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

    def ask(self, order: Order) -> Any:
        """The value of a `prepare` or `capabilities` order; raises the child's own error, or ProbeHostFailed."""
        account = self.run(order)
        folder = Path(order.folder)
        try:
            answer = read_json(folder / ANSWER)
        except (OSError, ValueError):
            failure = _failure(account, _log_tail(folder))
            raise ProbeHostFailed(
                f"Reading the {'device' if order.kind == 'capabilities' else 'model and data'} failed: {failure.reason}.",
                f"Its output is in {folder / LOG}.",
            ) from None
        if "error" in answer:
            kind: type[AutotuneError] = getattr(errors, answer["error"], AutotuneError)
            raise kind(answer["message"], answer["advice"])
        return answer["value"]

    def close(self) -> None:
        """End the host and everything below it; nothing is left in processes, shared memory or temporary folders."""
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


def _host_environment(token: str, scratch: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    environment = inherited(os.environ)
    parent = {
        "environment": environment,
        "path": [path or os.getcwd() for path in sys.path],
        "folder": os.getcwd(),
    }
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if root.endswith(("site-packages", "dist-packages")):
        paths.remove(root)  # found without help; ahead of the standard library it would shadow it
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": scratch,
        # One thread, so that forking is safe; the children get their threads back.
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "false"),
        "PYTHONUNBUFFERED": "1",
        sweep.MARK: token,
        PARENT_ENVIRONMENT: json.dumps(parent),
    }


@dataclass
class LiveProbe:
    """The Probe that measures: real trainings in processes of their own.

    base: the user's own TrainingArguments as fields that differ from the defaults. allowed_bytes: limit x (1 - headroom).
    folder: a trial's number and confirmation round -> where its files go. device_used: bytes in use on the device now
    and by whom, None where there is nothing to ask (CPU).
    """

    host: ProbeHost
    environment: Environment
    workload: Workload
    base: Mapping[str, Any]
    allowed_bytes: int
    folder: Callable[[int, int], Path]
    objective: str = "samples_per_second"
    device_used: Callable[[], tuple[int, list[str]] | None] = lambda: None
    timings: tuple[Timing, Timing] = field(default=(Timing(), CONFIRMATION))

    def __call__(self, configuration: Configuration, options: ProbeOptions) -> Measurement:
        accumulation = configuration.gradient_accumulation_steps
        run = accumulation if options.confirmation else min(accumulation, MICRO_STEPS)
        measurement = self._measure(self._order(configuration, options, run))
        if run < accumulation and not _loader_keeps_up(measurement, configuration):
            # Waiting cannot be composed where workers load beside the compute: run every micro-step.
            measurement = self._measure(self._order(configuration, options, accumulation))
        return measurement

    def _order(self, configuration: Configuration, options: ProbeOptions, accumulation_steps_run: int) -> Order:
        fields = training_arguments(configuration, self.environment, self.base)
        return Order(
            kind="probe",
            folder=str(self.folder(options.number, options.confirmation).absolute()),
            deadline_s=options.deadline_s,
            number=options.number,
            confirmation=options.confirmation,
            configuration=configuration,
            training_arguments=fields,
            model_arguments=model_arguments(configuration, self.environment),
            process_environment=process_environment(configuration, self.environment),
            workload=self.workload,
            environment=self.environment,
            accumulation_steps_run=accumulation_steps_run,
            allowed_bytes=self.allowed_bytes,
            timing=self.timings[bool(options.confirmation)],
            count_tokens=self.objective == "tokens_per_second",
            best_so_far=options.best_so_far,
        )

    def _measure(self, order: Order) -> Measurement:
        before = self.device_used()
        account = self.host.run(order)
        measurement = read_answer(order, account)
        after = self.device_used()
        if before is not None and after is not None:
            self._wait_for_memory(before[0])
            if foreign := sorted({*before[1], *after[1]}):
                measurement = _doubted(measurement, f"another process on the device: {', '.join(foreign)}")
        write_json(Path(order.folder) / ANSWER, measurement.to_dict())
        return measurement

    def _wait_for_memory(self, before: int, seconds: float = 10.0) -> None:
        """The driver gives a dead process's memory back a moment later; the next probe must find it free."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            used = self.device_used()
            if used is None or used[0] <= before + (64 << 20):
                return
            time.sleep(0.05)


def read_answer(order: Order, account: Mapping[str, Any] | None) -> Measurement:
    """The child's measurement where it left a valid one in time, else what its end means."""
    folder = Path(order.folder)
    seconds = float(account["seconds"]) if account else order.deadline_s
    tail = _log_tail(folder)
    if account is None or account["ended"] == "exited":
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            answer = replace(Measurement.from_dict(read_json(folder / ANSWER)), probe_seconds=seconds)
            return answer if answer.outcome is Outcome.COMPLETED else _with_log(answer, account, tail)
    failure = _failure(account, tail)
    if failure.outcome is Outcome.TIMED_OUT:
        failure = replace(failure, reason=f"not done after {order.deadline_s:.0f} s")
    accumulation = order.configuration.gradient_accumulation_steps if order.configuration else 1
    return Measurement(
        failure.outcome,
        reason=failure.reason,
        where=failure.where,
        accumulation_steps=accumulation,
        accumulation_steps_run=order.accumulation_steps_run,
        allowed_bytes=order.allowed_bytes,
        refused_bytes=failure.refused_bytes,
        probe_seconds=seconds,
        log_tail=tail,
    )


def _with_log(answer: Measurement, account: Mapping[str, Any] | None, tail: str) -> Measurement:
    """The child's account of its failure with what it printed, and with what only the host could see."""
    kills = account["kernel_oom_kills"] if account else 0
    if answer.outcome is Outcome.CRASHED and failures.worker_killed_for_memory(tail, kills):
        answer = replace(answer, outcome=Outcome.OUT_OF_MEMORY, where="data")
    return replace(answer, log_tail=tail)


def _failure(account: Mapping[str, Any] | None, tail: str) -> failures.Failure:
    if account is None:
        return failures.Failure(Outcome.CRASHED, "the process that starts probes died or hung")
    if account["ended"] == "timed out":
        return failures.Failure(Outcome.TIMED_OUT, f"not done after {account['seconds']:.0f} s")
    return failures.from_exit(account["code"], account["kernel_oom_kills"], tail)


def _log_tail(folder: Path, size: int = 4000) -> str:
    with contextlib.suppress(OSError), (folder / LOG).open("rb") as file:
        file.seek(max(0, (folder / LOG).stat().st_size - size))
        return file.read().decode(errors="replace")
    return ""


def _loader_keeps_up(measurement: Measurement, configuration: Configuration) -> bool:
    """Whether the composed speed holds: fetching in the training process adds up batch by batch, workers must be ready."""
    if measurement.outcome is not Outcome.COMPLETED or not configuration.values.get("workers"):
        return True
    wait, step = measurement.data_wait_s or 0.0, measurement.step_time_s or 1.0
    return wait / step <= READY_SHARE


def _doubted(measurement: Measurement, doubt: str) -> Measurement:
    return replace(measurement, observed_doubts=(*measurement.observed_doubts, doubt))
