"""Folders for temporary files that are gone with the process that made them, or at the latest with the next one."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_below(folder: Path, prefix: str) -> Iterator[Path]:
    """A new folder, locked for as long as this process lives; removes what killed processes left of this prefix.

    Raises OSError if the disk refuses.
    """
    remove_left(folder, f"{prefix}*")
    name, descriptor = _locked(folder, prefix)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path, prefix: str) -> tuple[str, int]:
    """(new folder, descriptor that locks it): one that another process removes as left before it is locked is made again."""
    import fcntl  # not on Windows, where studies can be compared

    while True:
        name = tempfile.mkdtemp(prefix=prefix, dir=folder)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(name, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = os.path.isdir(name)
            except OSError as error:  # a file system without locks, where nothing is removed either
                is_ours = not isinstance(error, BlockingIOError)
            if is_ours:
                return name, descriptor
            os.close(descriptor)


def remove_left(folder: Path, pattern: str, is_left: Callable[[Path], bool] = lambda path: True) -> None:
    """Remove this user's folders of that pattern that no living process has locked, if they are left by another sign too."""
    import fcntl

    for path in folder.glob(pattern):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its process lives, perhaps in a container
            if os.fstat(descriptor).st_uid == os.getuid() and is_left(path):
                shutil.rmtree(path, ignore_errors=True)
