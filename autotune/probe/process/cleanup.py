"""Ending processes, and removing what killed ones leave behind."""

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import tempfile
import time
from pathlib import Path

import psutil

from autotune.core.scratch import remove_left

HOST_TOKEN = "AUTOTUNE_HOST"
"""Environment variable that every process below a host carries from its start."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_SHARED_MEMORY = Path("/dev/shm")
# Made by torch, multiprocessing (semaphores, arenas, SharedMemory), joblib's loky, Intel's OpenMP and NCCL.
_LEFT_BEHIND = re.compile(r"torch_\d+_|sem\.mp-|mp-|pym-|psm_|sem\.loky-|loky-|__KMP_REGISTERED_LIB_|nccl-")


def become_subreaper() -> None:
    """Inherit the orphans below this process; raises OSError if the kernel refuses."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, of this id, ends; at once if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) is refused")


def kernel_oom_kills() -> int:
    """Number of processes that the kernel's out-of-memory killer has ended, as far as it shows."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        with contextlib.suppress(OSError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
    return total


def end_descendants(seconds: float = 5.0) -> None:
    """Kill and reap everything below this process, which is a subreaper."""
    until = time.monotonic() + seconds
    while True:
        below = psutil.Process().children(recursive=True)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not below or time.monotonic() > until:
            return
        time.sleep(0.002)


def end_marked(token: str, seconds: float = 5.0) -> None:
    """Kill all processes that were started below the host of this token, once the host itself is gone."""
    ended: set[psutil.Process] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        marked = _owners(token)
        for process in marked:  # and its descendants, which may have been started without the token
            with contextlib.suppress(psutil.Error):
                ended.update([process], process.children(recursive=True))
        living = [process for process in ended if _is_alive(process)]
        if not living:
            return
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def scratch_folder(token: str) -> Path:
    """The folder for temporary files of the host of this token."""
    return Path(tempfile.gettempdir()) / f"autotune-{token}"


def make_scratch(path: str) -> None:
    """Make a scratch folder that is locked for as long as this process lives."""
    os.mkdir(path, 0o700)
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)


def remove_left_scratch() -> None:
    """Remove scratch folders of this user's dead hosts.

    If a parent and its supervisor were killed at one moment, nobody else does.
    """
    pattern = scratch_folder("[0-9a-f]" * 16)
    remove_left(pattern.parent, pattern.name, lambda path: not _owners(path.name.rpartition("-")[2]))


def _owners(token: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _has_token(process, token)]


def _has_token(process: psutil.Process, token: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(HOST_TOKEN) == token and _is_alive(process)
    except (psutil.Error, OSError):
        return False


def _is_alive(process: psutil.Process) -> bool:
    """True if it still runs: not a zombie, and not a new process of the same id."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def shared_memory() -> frozenset[str]:
    """Names in shared memory now."""
    return frozenset(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else frozenset()


def left_shared_memory(before: frozenset[str]) -> list[str]:
    """Names of files that appeared since `before`, are ours, have a library's name and are mapped by no process."""
    mine: dict[str, int] = {}
    for name in filter(_LEFT_BEHIND.match, shared_memory() - before):
        with contextlib.suppress(OSError):
            status = (_SHARED_MEMORY / name).stat()
            if status.st_uid == os.getuid():
                mine[name] = status.st_ino
    held = _held_files() if mine else set()
    return [name for name, number in mine.items() if number not in held]


def remove_left_shared_memory(before: frozenset[str]) -> list[str]:
    """Remove what was left there since `before`; returns the names."""
    removed = left_shared_memory(before)
    for name in removed:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    return removed


def _held_files() -> set[int]:
    """Inodes of the shared memory that living processes of this user map or hold open.

    Not names: glibc's `sem_open` maps a semaphore under a temporary name and renames it afterwards.
    """
    numbers: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            maps = re.findall(r" (\d+) +/dev/shm/", (process / "maps").read_text())
            numbers.update(int(number) for number in maps)
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith("/dev/shm/"):
                        numbers.add(link.stat().st_ino)
    return numbers
