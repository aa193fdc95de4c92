"""Children that misbehave: a caller's own `model_init` and dataset may do anything, and these do it.

An order names the behaviour in the child's environment (BEHAVIOUR), with a folder for what it wants to tell the test.
"""

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

SAMPLES = 64


def behaviour() -> str:
    return os.environ.get("BEHAVIOUR", "")


def told(name: str) -> Path:
    """Where a child tells the test something: a file in the order's folder."""
    return Path(os.environ["BEHAVIOUR_FOLDER"]) / name


def tell(name: str, value: Any) -> None:
    beside = told(f".{name}")
    beside.write_text(json.dumps(value), encoding="utf-8")
    beside.rename(told(name))


class Samples(torch.utils.data.Dataset):
    """64 samples of eight numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        in_worker = torch.utils.data.get_worker_info() is not None
        if action := _DATA.get(behaviour()):
            action(in_worker)
        return {"x": torch.full((8,), float(index)), "labels": torch.ones(8)}


class Failing(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(os.environ["BEHAVIOUR_TEXT"])


class Tiny(torch.nn.Module):
    """Two linear layers; a step takes a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        if behaviour() == "float64 head":
            self.second.double()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if behaviour() == "no layer":
            return {"loss": (x @ self.first.weight @ self.second.weight - labels).square().mean()}
        hidden = self.first(x)
        match behaviour():
            case "float64 head":
                hidden = hidden.double()
            case "raise in forward":
                raise RuntimeError(os.environ["BEHAVIOUR_TEXT"])
            case "raise in backward":
                hidden = Failing.apply(hidden)
            case "nan":
                hidden = hidden * float("nan")
            case "slow":
                time.sleep(30)
        return {"loss": (self.second(hidden) - labels).square().mean()}


class FailingOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise RuntimeError(os.environ["BEHAVIOUR_TEXT"])


class OwnTrainer(Trainer):
    """A caller's own Trainer, which may do something else than its arguments say."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if behaviour() == "train nothing":
            return None
        result = super().train(*args, **kwargs)
        schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        tell(
            "trainer", {"arguments": self.args.to_dict(), "scheduler": repr(schedule), "steps": self.state.global_step}
        )
        return result

    def get_train_dataloader(self) -> Any:
        if behaviour() == "twice the batch":
            self._train_batch_size = 2 * self.args.train_batch_size
        return super().get_train_dataloader()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        match behaviour():
            case "own optimizer":
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
            case "raise in optimizer":
                self.optimizer = FailingOptimizer(self.model.parameters(), lr=0.01)
        return super().create_optimizer(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        match behaviour():
            case "own precision":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return super().compute_loss(model, inputs, *args, **kwargs)
            case "compare the rows":  # the more there are, the larger is the loss
                distance = inputs["x"].amax() - inputs["x"].amin()
                return distance * super().compute_loss(model, inputs, *args, **kwargs)
        return super().compute_loss(model, inputs, *args, **kwargs)


def model_init() -> Tiny:
    if action := _BUILD.get(behaviour()):
        action()
    return Tiny()


# While the model is built ---------------------------------------------------------------------------------------


def hang() -> None:
    tell("ready", os.getpid())
    while True:
        time.sleep(60)


def hang_deaf() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    hang()


def segfault() -> None:
    ctypes.string_at(0)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_text() -> None:
    raise RuntimeError(os.environ["BEHAVIOUR_TEXT"])


def flood() -> None:
    line = b"all work and no play makes a long log " * 26 + b"\n"
    block, written = line * 64, 0
    while written < 300e6:
        written += os.write(1, block)
    tell("flooded", written)


def leave_grandchildren() -> None:
    """One that left by a double fork and is deaf, one without any environment that the child does not know any more."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        tell("grandchild", os.getpid())
        while True:
            time.sleep(60)
    bare = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={})
    tell("bare", bare.pid)
    while not told("grandchild").exists():
        time.sleep(0.01)


def claim(answer: str) -> Callable[[], None]:
    def claiming() -> None:
        told("answer.json").write_text(answer, encoding="utf-8")
        os._exit(0)

    return claiming


def share_memory() -> None:
    """One of each kind that libraries make, none of them cleared away."""
    import _multiprocessing
    from multiprocessing import resource_tracker, shared_memory

    before = set(os.listdir("/dev/shm"))
    resource_tracker.register = lambda *_: None
    block = shared_memory.SharedMemory(create=True, size=1 << 20)
    held = _multiprocessing.SemLock(1, 1, 1, f"/mp-left-{os.getpid()}", False)  # closed, it would be swept
    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.ones(1 << 18).share_memory_()
    made = sorted(set(os.listdir("/dev/shm")) - before)
    tell("shared", [name for name in made if str(os.getpid()) in name or name == block.name])
    Path(tempfile.gettempdir(), "left").write_bytes(tensor.numpy().tobytes())
    assert held.handle
    tell("temporary", tempfile.mkdtemp())


def share_memory_and_be_killed() -> None:
    share_memory()
    be_killed()


def everything_at_once_and_hang() -> None:
    share_memory()
    leave_grandchildren()
    hang()


def _is_socket(fd: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:  # that of the listing
        return False


def facts() -> None:
    """What the process looks like from inside."""
    import numpy  # noqa: F401
    import threadpoolctl
    from huggingface_hub import constants

    names = ("ACCELERATE_MIXED_PRECISION", "RANK", "WORLD_SIZE", "NVIDIA_TF32_OVERRIDE", "OPENBLAS_NUM_THREADS")
    tell(
        "facts",
        {
            "session": os.getsid(0) == os.getpid(),
            "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
            "kept": os.environ.get("A_VARIABLE_OF_THE_CALLER"),
            "scrubbed": [name for name in names if name in os.environ],
            "matmul_precision": torch.get_float32_matmul_precision(),
            "is_telemetry_off": constants.HF_HUB_DISABLE_TELEMETRY,
            "threads": torch.get_num_threads(),
            "blas_threads": [item["num_threads"] for item in threadpoolctl.threadpool_info()],
            "folder": os.getcwd(),
            "path": sys.path,
            "temporary": tempfile.gettempdir(),
            "stdin": sys.stdin.read() if sys.stdin else "",
            "open_files": [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)],
            "sockets": [fd for fd in os.listdir("/proc/self/fd") if _is_socket(int(fd))],
        },
    )


_BUILD: dict[str, Callable[[], Any]] = {
    "hang": hang,
    "hang deaf": hang_deaf,
    "segfault": segfault,
    "be killed": be_killed,
    "leave with 0": lambda: os._exit(0),
    "exit politely": lambda: sys.exit(0),
    "raise in build": raise_text,
    "flood": flood,
    "grandchildren": leave_grandchildren,
    "claim success": claim('{"outcome": "completed", "steps": [], "observed_warnings": []}'),
    "claim half": claim('{"outcome": "comple'),
    "claim an unknown end": claim('{"outcome": "splendid", "steps": [], "observed_warnings": []}'),
    "share memory, be killed": share_memory_and_be_killed,
    "everything": everything_at_once_and_hang,
    "facts": facts,
}


# While a sample is fetched --------------------------------------------------------------------------------------


def worker_dies(number: int) -> Callable[[bool], None]:
    def dying(in_worker: bool) -> None:
        if in_worker:
            os.kill(os.getpid(), number)

    return dying


def worker_hangs(in_worker: bool) -> None:
    while in_worker:
        time.sleep(60)


def raise_in_data(in_worker: bool) -> None:
    raise_text()


def take_memory(in_worker: bool) -> None:
    """Far more than the limit that the tests set, in every sample, and given back at once."""
    bytearray(120 << 20)


_DATA: dict[str, Callable[[bool], Any]] = {
    "take memory": take_memory,
    "raise in data": raise_in_data,
    "worker hangs": worker_hangs,
    "worker killed": worker_dies(signal.SIGKILL),
    "worker bus error": worker_dies(signal.SIGBUS),
    "memory error in data": lambda in_worker: bytearray(1 << 60),
}
