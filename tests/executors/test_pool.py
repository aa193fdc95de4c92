"""The pool: jobs on devices, their ends, and devices that are lost."""

import threading
import time

import pytest

from autotune.core.device import LeftOut, LeftOutKind
from autotune.core.errors import TimeIsOver
from autotune.core.slot import Slot
from autotune.executors import ExecutorLost
from autotune.executors.pool import Pool, ThreadPool, as_pool
from autotune.probe import ProbeOptions
from tests.makers import completed, configuration
from tests.replay_probe import ReplayProbe

WITHIN = ProbeOptions(Slot(), 60.0)
GONE = LeftOut(LeftOutKind.LOST, detail="gone")


def probe() -> ReplayProbe:
    return ReplayProbe(lambda tried: completed(tried, 10.0))


def threads(restarts: bool = False) -> ThreadPool:
    return ThreadPool({"a": probe(), "b": probe()}, lambda device: None, lambda device: restarts)


def test_one_device_runs_its_job_in_this_thread_and_names_nobody() -> None:
    pool = as_pool(probe())
    assert as_pool(pool) is pool
    assert not pool.is_several
    pool.start(7, lambda measure: (threading.get_ident(), measure(configuration(), WITHIN).device), "")
    assert pool.is_running
    assert not pool.idle
    ended = pool.wait()
    assert (ended.key, ended.value) == (7, (threading.get_ident(), ""))


def test_several_devices_run_at_once_and_name_themselves() -> None:
    pool, both = threads(), threading.Barrier(2, timeout=10)
    for device in pool.devices:
        pool.start(device, lambda measure: (both.wait(), measure(configuration(), WITHIN).device), device)
    assert {(end.key, end.device, end.value[1]) for end in (pool.wait(), pool.wait())} == {("a",) * 3, ("b",) * 3}


def raising(error: BaseException):
    def job(_: object) -> None:
        raise error

    return job


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lost_executor_is_no_outcome_and_is_used_again_only_where_it_starts_again(restarts: bool) -> None:
    pool = threads(restarts)
    pool.start(1, raising(ExecutorLost("gone")), "a")
    ended = pool.wait()
    assert isinstance(ended.error, ExecutorLost)
    assert pool.idle == (["a", "b"] if restarts else ["b"])
    assert pool.left_out == ({} if restarts else {"a": GONE})


@pytest.mark.parametrize("pool", [threads(), Pool({"a": probe()})])
def test_a_time_that_is_over_is_returned_and_anything_else_raised(pool: Pool) -> None:
    pool.start(1, raising(TimeIsOver("over", "wait")), "a")
    assert isinstance(pool.wait().error, TimeIsOver)
    pool.start(2, raising(KeyboardInterrupt()), "a")
    with pytest.raises(KeyboardInterrupt):
        pool.wait()
    assert not pool.is_running


def test_ranks_take_devices_besides_and_leave_all_of_them() -> None:
    together = ThreadPool(
        {name: probe() for name in "abc"}, lambda _: None, lambda _: False, together=lambda names: probe()
    )
    wide = configuration(data_parallel_size=2)
    assert together.devices_needed(wide) == 2
    assert threads().devices_needed(wide) == 1, "where devices cannot be joined, ranks are one's own"
    go = threading.Event()
    together.start(1, lambda measure: (go.wait(10), measure(configuration(), WITHIN).device), "a", "c")
    assert together.idle == ["b"]
    go.set()
    assert together.wait().value == (True, "a + c")
    assert together.idle == ["a", "b", "c"]


def test_abandoned_jobs_are_ended_and_waited_for() -> None:
    ended = threading.Event()

    def job(_: object) -> None:
        ended.wait(20)
        raise ExecutorLost("left")

    pool = ThreadPool({"a": probe(), "b": probe()}, lambda device: ended.set(), lambda device: False)
    pool.start(1, job, "a")
    begun = time.monotonic()
    pool.abandon()
    assert not pool.is_running
    assert time.monotonic() - begun < 5


def test_a_device_is_avoided_as_long_as_there_is_another_one() -> None:
    pool = threads()
    assert pool.without(["a", "b"], "a") == ["b"]
    assert pool.without(["a"], "a") == []
    pool.left_out["b"] = GONE
    assert pool.without(["a"], "a") == ["a"]
