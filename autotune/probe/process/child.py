"""Child process of an order: enters a session of its own, carries the order out, answers and exits."""

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from autotune.core import write_json
from autotune.probe.order import Order, TrainingOrder, answer_name
from autotune.probe.process import cleanup, ranks
from autotune.probe.process.guard import guard
from autotune.probe.process.lazy_import import forget_opened_later

ANSWERED_BY = {
    "sanity_check": "autotune.probe.train.sanity",
    "verification": "autotune.probe.train.plain",
    "trace": "autotune.probe.trace.step",
    "rates": "autotune.probe.device.throughput",
}
"""Kinds of orders that a module's `run(order, objects, scratch)` answers with plain data."""

WITHOUT_CARDS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Variables with which torch finds no GPU, and loads no driver to find that out."""


@dataclass
class Parent:
    """State that every child gets from the parent: variables, path and folder; and the user's objects, pickled."""

    process_state: dict[str, Any] = field(default_factory=dict)
    objects: bytes = b""


def run_child(
    order: Order,
    parent: Parent,
    host: int,
    scratch: Path,
    log: int,
    channel: socket.socket,
    rank: int = 0,
    port: int = 0,
) -> NoReturn:
    """Carry the order out as one of its ranks, and exit.

    host: process id. log: file descriptor. channel: the host's. port: of the loopback, where ranks meet.
    """
    code = 1
    try:
        started = time.monotonic()
        cleanup.end_with(host)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        _redirect(log)
        os.close(channel.detach())  # a file of it is open, too
        named = f" (rank {rank} of {order.ranks})" if order.ranks > 1 else ""
        print(f"{order.kind} {order.number} started{named}", flush=True)
        meeting = scratch
        if rank:
            scratch /= f"rank-{rank}"
            scratch.mkdir(exist_ok=True)
        _enter_state(parent.process_state, scratch)
        if runs_user_code(order, parent.objects):
            _guard(order, scratch, meeting.parent)  # before there are other threads
        _give_threads_back()
        if order.ranks > 1:
            os.environ |= ranks.variables(rank, order.ranks, port, meeting)
        forget_opened_later()
        _give_free_heap_back()
        with contextlib.suppress(OSError):  # a sandbox may hide it
            Path("/proc/self/oom_score_adj").write_text("1000")
        os.environ |= cards_seen(order, parent.objects)
        reply = _answer(order, parent.objects, started, scratch)
        write_json(Path(order.folder) / answer_name(rank), reply)
        code = 0
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def runs_user_code(order: Order, objects: bytes) -> bool:
    """True if Python code of the user's may run, which may write files."""
    is_trusted = (
        order.workload.trust_remote_code
        if order.workload
        else order.request.get("request", {}).get("trust_remote_code")
    )
    return order.kind not in ("capabilities", "rates") and bool(objects or is_trusted)


def _guard(order: Order, scratch: Path, shared: Path) -> None:
    """Guard the user's files. shared: folder that children of the host share."""
    cache = order.request.get("cache", shared)
    with contextlib.suppress(OSError):
        os.makedirs(cache, exist_ok=True)
    guard(scratch / "layers", [shared, order.folder, cache])


def cards_seen(order: Order, objects: bytes) -> dict[str, str]:
    """The variables that name the GPUs which a child sees, for it to set before anything can wake CUDA.

    What is computed from shapes alone sees none: it may run while another child is measured. Python code of the user's may
    ask for one while the model is read.
    """
    if order.kind == "trace":
        return WITHOUT_CARDS
    if order.kind == "prepare":
        return {} if objects or order.request["request"].get("trust_remote_code") else WITHOUT_CARDS
    uuids: Sequence[str | None] = [order.request.get("device_uuid")]  # of `capabilities`
    if order.environment is not None:
        # As under torchrun, each rank sees all cards and takes the one of its number.
        several = order.environment.device_uuids[: order.ranks]
        uuids = several if order.ranks > 1 else [order.environment.device_uuid]
    visible = ",".join(filter(None, uuids))
    return {"CUDA_VISIBLE_DEVICES": visible} if visible else {}


def _answer(order: Order, objects: bytes, started: float, scratch: Path) -> dict[str, Any]:
    from autotune.core import failures
    from autotune.core.errors import AutotuneError
    from autotune.core.request import TuningRequest
    from autotune.probe.device import capabilities
    from autotune.probe.train import run
    from autotune.workload.read import read_workload

    try:
        if order.kind == "probe":
            return run.run(cast("TrainingOrder", order), objects, started, scratch).to_dict()
        if order.kind in ANSWERED_BY:
            try:
                module = importlib.import_module(ANSWERED_BY[order.kind])
                return {"value": module.run(order, objects, scratch)}
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                failure = failures.from_exception(error, order.kind)
                return {"outcome": failure.outcome.value, "reason": failure.reason, "where": failure.where}
        if order.kind == "capabilities":
            return {"value": capabilities.read(order).to_dict()}
        request = TuningRequest.from_dict(order.request["request"])
        return {"value": read_workload(request, Path(order.request["cache"]), objects).to_dict()}
    except AutotuneError as error:
        return {"error": type(error).__name__, "message": error.message, "advice": error.advice}
    except SystemExit as ended:  # by code that comes with the model, or of the user's objects
        if order.kind == "probe":
            raise  # its log says where
        message = f"Python code that is read with the model or data ends the process: sys.exit({ended.code!r})."
        return {"error": "InvalidRequest", "message": message, "advice": "Take that out of its code."}


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


def _enter_state(parent: dict[str, Any], scratch: Path) -> None:
    """Take over the parent's variables (see `launcher.inherited`), path and folder."""
    mark = os.environ[cleanup.HOST_TOKEN]
    os.environ.clear()
    os.environ |= parent["environment"]
    os.environ |= {"TMPDIR": str(scratch), cleanup.HOST_TOKEN: mark}
    tempfile.tempdir = str(scratch)
    sys.path[:] = parent["path"]
    with contextlib.suppress(OSError):
        os.chdir(parent["folder"])


def _give_free_heap_back() -> None:
    """Return to the kernel what the host's imports freed.

    It would hide some ten MiB of a training's peak and spare its steps page faults.
    """
    with contextlib.suppress(AttributeError, OSError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)


def _give_threads_back() -> None:
    """The host runs numpy's BLAS on one thread so that it may fork; a training has as many as OpenBLAS takes by itself."""
    import threadpoolctl

    if "OPENBLAS_NUM_THREADS" not in os.environ:
        first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        threads = int(first) if first.isdecimal() and int(first) else len(os.sched_getaffinity(0))
        threadpoolctl.threadpool_limits(threads, user_api="blas")
