"""A program that changes files in all ways that are tried, in its folder and in another one, guarded."""

import ctypes
import json
import logging
import os
import shelve
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from autotune.probe.process.guard import guard

FILES = ("written", "appended", "renamed", "removed", "touched", "chmod", "truncated", "mapped", "npy", "log", "by sed")
FOLDERS = ("removed tree", "removed by rm", "renamed folder")


def fill(folder: Path) -> None:
    """Make the files that `changes` changes."""
    for name in FILES:
        (folder / name).write_text("a b c d")
    for name in FOLDERS:
        (folder / name).mkdir()
        (folder / name / "inner").write_text("e")
    with sqlite3.connect(folder / "sqlite") as database:
        database.execute("create table t (a)")
    database.close()
    with shelve.open(str(folder / "shelf")) as shelf:
        shelf["a"] = 1


def changes(folder: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(What is changed, a function that does it). folder: a prefix of names, which may be relative."""
    path = lambda name: os.path.join(folder, name)  # noqa: E731

    def insert() -> None:
        database = sqlite3.connect(path("sqlite"))
        try:
            database.execute("insert into t values (2)")
            database.commit()
        finally:
            database.close()

    def append() -> None:
        with open(path("appended"), "a") as file:
            file.write("x")

    def shelved() -> None:
        with shelve.open(path("shelf")) as shelf:
            shelf["a"] = 2

    yield "written", lambda: Path(path("written")).write_text("x")
    yield "new", lambda: Path(path("new")).write_text("x")
    yield "appended", append
    yield "renamed", lambda: os.rename(path("renamed"), path("other name"))
    yield "renamed folder", lambda: shutil.move(path("renamed folder"), path("moved folder"))
    yield "removed", lambda: os.unlink(path("removed"))
    yield "removed tree", lambda: shutil.rmtree(path("removed tree"))
    yield "touched", lambda: Path(path("touched")).touch()
    yield "chmod", lambda: os.chmod(path("chmod"), 0o777)
    yield "truncated", lambda: os.truncate(path("truncated"), 0)
    yield "symlink", lambda: os.symlink("written", path("symlink"))
    yield "sqlite", insert
    yield "shelf", shelved
    yield "npy", lambda: np.save(path("npy"), np.ones(3))
    yield "mapped", lambda: np.memmap(path("mapped"), dtype="u1", mode="r+").fill(7)
    yield "log", lambda: logging.FileHandler(path("log")).emit(logging.makeLogRecord({"msg": "a line"}))
    yield "by rm", lambda: subprocess.run(["rm", "-r", path("removed by rm")], check=True, capture_output=True)
    yield "by sed", lambda: subprocess.run(["sed", "-i", "s/a/b/", path("by sed")], check=True, capture_output=True)


def failures(folder: str) -> dict[str, str]:
    """What could not be changed in this folder -> why."""
    failed = {}
    for name, change in changes(folder):
        try:
            change()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def main(other: str, kept: str, user: int) -> None:
    """Print what `guard` says and what failed in this folder and in the other one; writes an answer to the kept folder."""
    with tempfile.TemporaryDirectory() as temporary:  # imports what it takes, while Python's own files can be read
        fill(Path(temporary))
        failures(temporary)
    if os.fork():  # numpy has threads
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its /proc is its own, as of a process of that user's
        os.environ["HOME"] = "/nowhere"
    unguarded = guard(Path(kept, "layers"), [kept])
    failed = [failures(""), failures(other)]
    with tempfile.TemporaryDirectory(dir=kept) as temporary:  # as everywhere
        fill(Path(temporary))
    Path(kept, "answer").write_text("real")
    sys.stdout.write(json.dumps([unguarded, *failed]))
    sys.stdout.flush()
    os._exit(0)  # a shelf that is half open writes again at the end


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
