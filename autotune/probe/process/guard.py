"""Guard of the user's files: what a trial writes stays in layers of its own, or is refused.

    /home   a layer (overlay): the user's files are read, writes go to the trial's scratch folder and are gone with it
    /usr    read only
    kept    written: the order's folder, scratch, the libraries' caches, /dev and /proc

This needs a mount namespace: root's, or one of a user namespace. Without it all but `kept` is read only, by Landlock and by an
audit hook of Python, which also refuses what Landlock does not know (chmod, utime) and says what to do.
"""

import contextlib
import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr"}
"""Folders of the root that hold no user's files: they get no layers."""

MOST_LAYERS, MOST_ENTRIES = 64, 1000
"""Layers at most, the first over the working and the home folder; entries of a folder, at most, that may get one."""

DEFAULT_CACHES = ("~/.cache", "~/.nv", "~/.triton", "/tmp/nvidia-mps")
CACHES = (
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
    *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "CUDA_MPS_PIPE_DIRECTORY", "XDG_CACHE_HOME"),
)
"""Variables of the folders that libraries keep for later processes, and of the pipes of CUDA's MPS."""

MEANS, ALL = "AUTOTUNE_GUARD", "layers landlock python"
"""The user's variable, which names the means that are used: by default all; `none` guards nothing."""

READ_ONLY = "AUTOTUNE_READ_ONLY"
"""Variable of trials whose working folder has no layer: the folders that they may write, a list in JSON."""

ADVICE = "write below tempfile.gettempdir() instead"

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000  # linux/mount.h
_AT_RECURSIVE, _RDONLY = 0x8000, 1  # linux/fcntl.h, linux/mount.h
_MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 442, 444, 445, 446  # system calls, on all processors
_ALL_USERS = "4294967295"  # in the map of the first user namespace
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
_WRITES = 0x1FF2  # linux/landlock.h: write, remove and make files of all kinds
_LATER_WRITES = ((2, 1 << 13), (3, 1 << 14))  # (its version, move to another folder), (its version, truncate)

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGED = {
    "open": slice(1),
    **dict.fromkeys(("os.rename", "os.link"), slice(2)),
    "os.symlink": slice(1, 2),
    **{f"os.{name}": slice(1) for name in ("chmod", "chown", "mkdir", "remove", "rmdir", "truncate", "utime")},
    **{f"os.{name}": slice(1) for name in ("setxattr", "removexattr")},
}
"""Audit event of Python -> which of its arguments are files that change."""


def guard(scratch: Path, kept: Iterable[str | Path]) -> str:
    """Let this process, of one thread, and all that it starts write nothing of the user's: what is not so, or empty.

    scratch: folder to be made for the layers. kept: folders that are written for real. Enters the current folder again.
    """
    means, folder = os.environ.get(MEANS, ALL), os.getcwd()
    paths = [*(os.path.realpath(path) for path in kept), *_caches(folder), "/dev", "/proc"]
    real = [path for path in paths if os.path.isdir(path) and not os.statvfs(path).f_flag & os.ST_RDONLY]
    if os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/nvidia-uvm"):
        with contextlib.suppress(OSError):  # CUDA's set-uid program, which has no effect in here
            subprocess.run(["nvidia-modprobe", "-u", "-c=0"], check=False)
    layered, is_refused = list[str](), False
    if "layers" in means:
        with contextlib.suppress(OSError):
            layered = _put_layers(_folders(folder, real), scratch, real)
            is_refused = _make_read_only([*layered, *real])
    os.chdir(folder)
    is_refused = is_refused or ("landlock" in means and _refuse_writes([*layered, *real]))
    if any(_is_below(folder, layer) for layer in layered):
        return "" if is_refused else f"what they write outside of {', '.join(layered)} is not guarded"
    if "python" in means:
        os.environ[READ_ONLY] = json.dumps([*layered, *real])
        refuse_in_python()
    if is_refused:
        return f"the working folder is read only, and parts of yours that write there fail ({ADVICE})"
    unseen = "what commands, databases and native code write" if "python" in means else "what they write"
    return f"{unseen} is not guarded, as neither namespaces nor Landlock can be used"


def why_unguarded() -> str:
    """Reply of `guard` in a process of its own in this folder."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-P", "-m", __name__]
    with tempfile.TemporaryDirectory(prefix="autotune-guard-") as scratch:
        done = subprocess.run([*command, scratch], env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _caches(folder: str) -> list[str]:
    """The libraries' caches that are there and do not hold this folder."""
    named = [os.environ.get(name, "") for name in CACHES]
    paths = [os.path.realpath(os.path.expanduser(path)) for path in (*named, *DEFAULT_CACHES) if path]
    return [path for path in paths if os.path.isdir(path) and not _is_below(folder, path)]


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


# Layers -----------------------------------------------------------------------------------------------------------


def _folders(current: str, kept: list[str]) -> list[str]:
    """Largest folders that can have a layer: the user's (of root all), not kept, without mount points below."""
    user, group = os.geteuid(), os.getegid()
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    points = [re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in lines]
    taken = list[str]()

    def can_have_one(folder: str) -> bool:
        # A user's namespace knows no other owners: files of theirs cannot be copied into the layer.
        with contextlib.suppress(OSError):
            status = os.stat(folder)
            is_users = not user or (status.st_uid, status.st_gid) == (user, group)
            return is_users and not any(point != folder and _is_below(point, folder) for point in points)
        return False

    def entries(folder: str) -> list[str]:
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            return [entry.path for entry in islice(found, MOST_ENTRIES) if entry.is_dir(follow_symlinks=False)]
        return []

    def is_system(folder: str) -> bool:
        return folder.split("/")[1] in {"", *SYSTEM}

    top = [folder for folder in entries("/") if not is_system(folder)]
    paths = [Path(current), Path(os.path.realpath(os.path.expanduser("~")))]
    above = [str(folder) for path in paths for folder in reversed((path, *path.parents))]
    above = [folder for folder in above if not is_system(folder) or folder == current not in ("/", "/dev/shm")]
    for folder in (*above, *top, *(inner for outer in top if not can_have_one(outer) for inner in entries(outer))):
        if can_have_one(folder) and not any(_is_below(folder, other) for other in (*taken, *kept)):
            taken.append(folder)
    return taken[:MOST_LAYERS]


def _put_layers(folders: list[str], scratch: Path, kept: list[str]) -> list[str]:
    """Put layers over these folders and the kept ones over them again, for this process: those that have one.

    Raises OSError if it may not.
    """
    user, group = os.geteuid(), os.getegid()
    if user and _reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        raise PermissionError("AppArmor allows a namespace, and nothing in it")
    # In a user's namespace a folder of the user's cannot be renamed (EXDEV, which shutil.move copes with).
    moves = "redirect_dir=on" if not user and _ALL_USERS in _reads("/proc/self/uid_map") else "userxattr"
    _call("unshare", _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text, encoding="utf-8")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    scratch.mkdir()
    real = [(path, _held(path)) for path in kept]  # as they are below the layers
    done = list[str]()
    for in_memory in (False, True):  # where the scratch folder's file system can hold no layers (a container's)
        if in_memory:
            _mount("tmpfs", str(scratch), "tmpfs", 0)
        base = _held(scratch)
        for number, folder in enumerate(folders):
            layer = f"{base}/{number}"
            os.makedirs(f"{layer}/upper")
            os.mkdir(f"{layer}/work")
            options = f"lowerdir={_held(folder)},upperdir={layer}/upper,workdir={layer}/work,volatile,{moves}"
            with contextlib.suppress(OSError):
                _mount("overlay", folder, "overlay", 0, options)
                done.append(folder)
                for path, *_ in os.walk(f"{layer}/work"):
                    os.chmod(path, 0o700)  # so that the user can remove it
        if done:
            break
    for path, held in real:
        if any(_is_below(path, folder) for folder in done) or not os.path.ismount(path):
            _mount(held, path, "", _MS_BIND | _MS_REC)
    return done


def _make_read_only(kept: list[str]) -> bool:
    """Make all that is mounted read only, for this process, except below these mount points; False if the kernel cannot."""

    def set_attributes(path: str, on: int, off: int) -> None:
        attributes = struct.pack("4Q", on, off, 0, 0), ctypes.c_size_t(32)
        _call("syscall", _MOUNT_SETATTR, -1, os.fsencode(path), _AT_RECURSIVE, *attributes)

    with contextlib.suppress(OSError):
        set_attributes("/", _RDONLY, 0)
        for path in kept:
            with contextlib.suppress(OSError):
                set_attributes(path, 0, _RDONLY)
        return True
    return False


def _held(path: str | Path) -> str:
    """Another path of this folder, by which it is reached whatever is mounted over it."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"


def _reads(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8").strip()
    return ""


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    _call("mount", *map(os.fsencode, (source, target, kind)), ctypes.c_ulong(flags), options.encode())


def _call(name: str, *arguments: Any) -> int:
    """The result of a function of the C library; raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    if (result := getattr(library, name)(*arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


# Refusal ----------------------------------------------------------------------------------------------------------


def _refuse_writes(allowed: Iterable[str]) -> bool:
    """Refuse this process and all that it starts to write elsewhere than below these folders; False if the kernel cannot."""
    try:
        version = _call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), 1)
        writes = _WRITES | sum(access for since, access in _LATER_WRITES if version >= since)
        rules = _call("syscall", _CREATE_RULESET, struct.pack("Q", writes), ctypes.c_size_t(8), 0)
        for folder in filter(os.path.isdir, allowed):
            held = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            _call("syscall", _ADD_RULE, rules, 1, struct.pack("=Qi", writes, held), 0)
            os.close(held)
        with contextlib.suppress(OSError):  # without capabilities it takes the promise to gain none
            _call("syscall", _RESTRICT_SELF, rules, 0)
            return True
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call("syscall", _RESTRICT_SELF, rules, 0)
    except OSError:
        return False
    return True


def refuse_in_python() -> None:
    """Refuse what Python changes elsewhere than below the folders of READ_ONLY, in this process or one that started it."""
    sys.addaudithook(partial(_check_event, kept=json.loads(os.environ[READ_ONLY])))


def _check_event(event: str, arguments: tuple[Any, ...], kept: list[str]) -> None:
    """Audit hook that raises PermissionError where a file changes that is not below the kept folders."""
    changed = arguments[_CHANGED[event]] if event in _CHANGED else ()
    if event == "open" and not arguments[2] & _WRITE_FLAGS:
        return
    for path in changed:
        if not isinstance(path, (str, bytes, os.PathLike)):
            continue
        name = os.fsdecode(path)
        if event in ("os.remove", "os.rmdir") and arguments[1] >= 0:  # of shutil.rmtree
            name = os.path.join(os.readlink(f"/proc/self/fd/{arguments[1]}"), name)
        parent, last = os.path.split(os.path.abspath(name))
        real = os.path.join(os.path.realpath(parent), last)
        real = os.path.realpath(real) if event == "open" else real
        if not any(_is_below(real, folder) for folder in kept):
            raise PermissionError(f"autotune: a trial writes nothing of yours: {real} ({ADVICE})")


if __name__ == "__main__":
    print(guard(Path(sys.argv[1], "layers"), sys.argv[1:]))
