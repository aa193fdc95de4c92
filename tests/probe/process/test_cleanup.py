"""Ending processes and clearing shared memory away: ours all, others' never."""

import _multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from autotune.probe.process import cleanup
from autotune.probe.process.launcher import ProbeHost
from tests.probe.processes import alive, bounded

SHARED = Path("/dev/shm")


@pytest.fixture
def left() -> Iterator[list[Path]]:
    """Files that a test puts into shared memory; gone afterwards."""
    paths: list[Path] = []
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def made(left: list[Path], name: str) -> str:
    path = SHARED / name
    path.write_bytes(b"left behind")
    left.append(path)
    return name


@pytest.mark.parametrize("pattern", ["torch_{}_1_2", "psm_{}", "sem.mp-{}", "pym-{}-x", "sem.loky-{}", "nccl-{}"])
def test_what_libraries_leave_in_shared_memory_is_removed(left: list[Path], pattern: str) -> None:
    before = cleanup.shared_memory()
    name = made(left, pattern.format(os.getpid()))
    assert name in cleanup.remove_left_shared_memory(before)
    assert not (SHARED / name).exists()


def test_what_was_there_before_or_has_no_librarys_name_stays(left: list[Path]) -> None:
    earlier = made(left, f"psm_{os.getpid()}")
    before = cleanup.shared_memory()
    foreign = made(left, f"somebodys-own-{os.getpid()}")
    assert not {earlier, foreign} & set(cleanup.remove_left_shared_memory(before))
    assert (SHARED / earlier).exists()
    assert (SHARED / foreign).exists()


def test_what_a_living_process_maps_or_holds_open_stays(left: list[Path]) -> None:
    before = cleanup.shared_memory()
    block = shared_memory.SharedMemory(create=True, size=4096)
    try:
        held = made(left, f"torch_{os.getpid()}_3_4")
        with (SHARED / held).open("rb"):
            removed = cleanup.remove_left_shared_memory(before)
            assert block.name not in removed
            assert held not in removed
        assert held in cleanup.remove_left_shared_memory(before)
    finally:
        block.close()
        block.unlink()


def test_a_semaphore_in_use_stays_though_it_is_mapped_under_the_name_it_was_born_with() -> None:
    before = cleanup.shared_memory()
    name = f"mp-held-{os.getpid()}"
    semaphore = _multiprocessing.SemLock(1, 1, 1, f"/{name}", False)
    try:
        assert f"sem.{name}" not in cleanup.remove_left_shared_memory(before)
        assert (SHARED / f"sem.{name}").exists()
        assert semaphore.acquire()
    finally:
        _multiprocessing.sem_unlink(f"/{name}")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_stays(left: list[Path]) -> None:
    before = cleanup.shared_memory()
    name = made(left, f"psm_{os.getpid()}")
    os.chown(SHARED / name, 65534, 65534)
    assert name not in cleanup.remove_left_shared_memory(before)


def test_everything_with_the_mark_is_ended_and_nothing_else() -> None:
    token = f"token-of-{os.getpid()}"
    marked_environment = {**os.environ, cleanup.HOST_TOKEN: token}
    script = "import subprocess; print(subprocess.Popen(['/bin/sleep', '1000'], env={}).pid, flush=True); input()"
    with (
        bounded(subprocess.Popen(["/bin/sleep", "1000"], env=marked_environment, start_new_session=True)) as marked,
        bounded(subprocess.Popen(["/bin/sleep", "1000"], env={**os.environ, cleanup.HOST_TOKEN: "another"})) as other,
        bounded(
            subprocess.Popen(
                [sys.executable, "-c", script],
                env=marked_environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        ) as parent,
    ):
        assert parent.stdout
        unmarked = int(parent.stdout.readline())
        cleanup.end_marked(token)
        assert not alive(marked.pid)
        assert not alive(parent.pid)
        assert not alive(unmarked), "started by a marked process, with an environment of its own"
        assert alive(other.pid)
        assert alive(os.getpid())


def test_a_scratch_folder_is_removed_once_its_host_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent and its supervisor are killed at one moment: the next search removes what they left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, locked, marked = (cleanup.scratch_folder(digit * 16) for digit in "abc")
    for folder in (left, marked, tmp_path / "autotune-notes"):
        (folder / "ask-1").mkdir(parents=True)
    cleanup.make_scratch(str(locked))
    living = subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], cleanup.HOST_TOKEN: "c" * 16})
    try:
        cleanup.remove_left_scratch()
        assert {*tmp_path.iterdir()} == {locked, marked, tmp_path / "autotune-notes"}
    finally:
        living.kill()
        living.wait()
    with ProbeHost():  # no host is asked for anything: launching it is enough
        assert not marked.exists()
