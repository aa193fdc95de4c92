"""Local executors: shares of the cores, locks of cards, and a real search on two of them."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from autotune import search
from autotune.commands.result import TuningResult
from autotune.core import InvalidRequest
from autotune.core.errors import SearchFailed
from autotune.core.note import Note, NoteKind
from autotune.executors import Executor, ExecutorLost, local
from autotune.executors.local import LocalHost
from autotune.probe.device.nvml import Card
from autotune.probe.process.launcher import on_cores
from autotune.study.plan import Progress
from tests.conftest import CORES
from tests.makers import cpu, workload

pytestmark = pytest.mark.usefixtures("all_cores")  # tests that run side by side have one core each
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two executors need two cores")
SMALL = {"sequence_length": 32, "device": "cpu", "devices": 2, "n_trials": 4, "space": "quick", "no_history": True}
SMALL["sampler"] = "random"  # tries all, whatever earlier searches taught


@needs_two_cores
def test_shares_are_disjoint_and_equal() -> None:
    cores = sorted(os.sched_getaffinity(0))
    first, second = local.shares(2, None)
    assert len(first) == len(second) == len(cores) // 2
    assert not {*first} & {*second}
    assert local.shares(2, 1) == [[cores[0]], [cores[1]]]
    with pytest.raises(InvalidRequest, match="cores"):
        local.shares(2, 10**4)


def test_a_thread_is_on_its_cores_and_back_afterwards() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(frozenset([min(before)])):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_a_card_is_held_by_one_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOCKS", tmp_path)
    card = Card(0, "GPU-1", "a card", 1)
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        assert local.lock_card(card, first) == []
        with pytest.raises(SearchFailed, match="Another search uses a card"):
            local.lock_card(card, second)
        first.close()
        local.lock_card(card, second)
    assert (tmp_path / "autotune-GPU-1.lock").stat().st_mode & 0o777 == 0o666


def test_a_lock_is_no_link_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LOCKS", tmp_path)
    private = tmp_path / "private"
    private.touch(0o600)
    (tmp_path / "autotune-GPU-1.lock").symlink_to(private)
    with contextlib.ExitStack() as stack:
        assert local.holds("GPU-1", stack) is None
        (note,) = local.lock_card(Card(0, "GPU-1", "a card", 1), stack)
    assert note == Note(NoteKind.NOT_LOCKED, detail=str(tmp_path))
    assert private.stat().st_mode & 0o777 == 0o600


def test_a_pool_of_one_share_goes_on_after_a_loss() -> None:
    host = LocalHost(cores=[0])
    pool = local.pool_of([Executor("core 0", host, cpu(), workload())], lambda executor: None)
    pool.start(1, lost, "core 0")
    assert isinstance(pool.wait().error, ExecutorLost)
    assert pool.devices == ["core 0"]


def lost(_: object) -> None:
    raise ExecutorLost("gone")


def hosts_of(pid: int) -> list[psutil.Process]:
    """The processes that fork probes below this one."""
    below = psutil.Process(pid).children(recursive=True)
    return [process for process in below if "autotune.probe.process.host" in " ".join(process.cmdline())]


@pytest.mark.nightly
@pytest.mark.alone  # beside other tests one core is slower, and left out
@needs_two_cores
def test_a_search_on_two_devices_survives_one_that_is_killed(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    killed: list[int] = []

    def kill() -> None:
        time.sleep(2.0)
        probing = [host for host in hosts_of(os.getpid()) if host.ppid() != os.getpid() and host.children()]
        killed.append(probing[-1].parent().pid)  # its supervisor: the kernel ends the host and its probe
        os.kill(killed[0], signal.SIGKILL)

    def watch(progress: Progress) -> None:
        if progress.kind == "probing" and progress.number == 1 and not killed:
            threading.Thread(target=kill).start()

    result = search("bert-mini", 8, output_dir=tmp_path, watch=watch, **SMALL | {"n_trials": 16})
    assert killed
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))
    assert all(trial.feasible for trial in result.trials[:2])
    assert {device.name for device in result.devices} == {trial.measurement.device for trial in result.trials}
    assert TuningResult.load(result.folder).devices == result.devices
    if result.speedup is not None:  # one device's speed does not count against another's
        at = [{measured.device for measured in trial.measurements} for trial in (result.best, result.baseline)]
        assert at[0] & at[1]
    assert {*psutil.Process().children(recursive=True)} <= {*before}
