"""What a folder holds, to compare it before and after."""

import hashlib
from pathlib import Path


def digest(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Each file below it, and each folder -> its mode, the time of its last change, and its bytes' digest."""
    states = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        states[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return states
