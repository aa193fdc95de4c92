"""The dispatcher: searches run, end once, are cancelled, recovered and given up; with real processes and a real database."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.commands.result import TuningResult
from autotune.service.devices import Devices
from autotune.service.dispatcher import Dispatcher, Run, death, runner_environment
from autotune.service.records import CANCELLED, DONE, FAILED, QUEUED, RUNNING
from autotune.service.roots import Roots
from autotune.service.store import Store
from autotune.service.tables import DatabaseAway, DatabaseTaken, ServerLock
from tests.hurry import ROOT
from tests.probe.processes import becomes_true, bounded, started_in
from tests.service.dispatching import (
    cancelled,
    dispatcher_of,
    dispatching,
    ended,
    faults,
    states,
    trials_of,
    when,
)
from tests.service.searches import REQUEST, Replaying, study_of


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite alone: `test_kills.py` has both databases."""
    return f"sqlite:///{tmp_path / 'state' / 'autotune.db'}"


@pytest.fixture
def store(engine: Any) -> Store:
    return Store(engine)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The folder of a service, below which nothing runs in the end."""
    (tmp_path / "state").mkdir(exist_ok=True)
    yield tmp_path / "state"
    assert becomes_true(lambda: not started_in(tmp_path / "state"), 20)


@pytest.fixture
def submit(store: Store) -> Callable[..., str]:
    """Submits a search with this change of the usual request: its id."""

    def submit(owner: str = "anna", priority: int = 0, **request: Any) -> str:
        return store.submit(owner, "a search", {**REQUEST, **request}, priority=priority)[0].id

    return submit


@pytest.mark.nightly
def test_a_runner_that_is_killed_is_started_again_and_loses_nothing(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    replaying.hold()
    search_id = submit()
    with dispatching(dispatcher_of(store, state, replaying)):
        assert becomes_true(lambda: bool(replaying.executed), 60)
        os.kill(when(store, search_id, lambda search: search.pid).pid or 0, signal.SIGKILL)
        when(store, search_id, lambda search: search.attempt == 2)
        replaying.release()
        search = ended(store, search_id)
    assert (search.state, search.attempt, search.lent, search.problem) == (DONE, 2, "cpu", None)
    assert states(store, search_id) == [QUEUED, RUNNING, QUEUED, RUNNING, DONE]
    assert trials_of(store, search_id) == [0, 1, 2, 3]
    assert search.headline == (search.result or {})["headline"]
    assert len(replaying.executed) == len({*replaying.executed}) + 1  # the one that was killed
    reasons = [
        event.body["reason"] for event in store.events(search_id) if "reason" in event.body and event.kind == "state"
    ]
    assert all(reason.startswith("The search's process was killed by SIGKILL") for reason in reasons)
    assert faults(store, state, search) == []


def test_a_search_whose_process_cannot_be_started_waits_too(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("asyncio.create_subprocess_exec", fail)
    search_id = submit()
    with dispatching(dispatcher_of(store, state, replaying, backoff_s=60)):
        search = when(store, search_id, lambda search: search.interruptions)
    assert (search.state, search.attempt) == (QUEUED, 1)
    assert search.not_before is not None
    assert search.not_before > search.created_at + timedelta(seconds=60)


@pytest.mark.parametrize("how", ["patient", pytest.param("now", marks=pytest.mark.nightly)])
def test_a_running_search_is_cancelled_with_what_it_measured(
    how: str, store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    search_id = submit()
    dispatcher = dispatcher_of(store, state, replaying)
    with dispatching(dispatcher):
        when(store, search_id, lambda search: trials_of(store, search_id))
        replaying.hold()
        store.cancel(search_id, now=how == "now")
        dispatcher.wake()
        if how == "patient":
            time.sleep(0.3)
            assert store.read(search_id).state == RUNNING
            replaying.release()
        search = ended(store, search_id)
    assert search.state == CANCELLED
    assert (search.result or {})["best"] is not None
    assert faults(store, state, search) == []


def test_a_runner_that_ignores_its_cancellation_is_killed_after_the_grace(
    store: Store, state: Path, tmp_path: Path, submit: Callable[..., str]
) -> None:
    replaying = Replaying(tmp_path / "replaying", deaf=True)
    replaying.hold()
    search_id = submit()
    dispatcher = dispatcher_of(store, state, replaying, grace_s=0.3)
    with dispatching(dispatcher):
        assert becomes_true(lambda: bool(replaying.executed), 60)
        running = when(store, search_id, lambda search: search.pid)
        store.cancel(search_id, now=False)
        dispatcher.wake()
        time.sleep(0.6)
        assert psutil.Process(running.pid).status() != psutil.STATUS_ZOMBIE  # patience has no end
        store.cancel(search_id, now=True)
        dispatcher.wake()
        search = ended(store, search_id)
    assert states(store, search_id) == [QUEUED, RUNNING, CANCELLED]
    assert search.result is None


def test_one_device_runs_one_search_at_a_time_by_priority(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    replaying.hold()
    first = submit("anna")
    dispatcher = dispatcher_of(store, state, replaying)
    with dispatching(dispatcher):
        when(store, first, lambda search: search.pid)
        later, sooner, other = submit("bert"), submit("carl", priority=5), submit("dora", device="cuda")
        dispatcher.wake()
        for search_id in (first, sooner, later):
            running = when(store, search_id, lambda search: search.pid)
            assert [search.id for search in store.running()] == [search_id]
            assert running.lent == "cpu"
            cancelled(store, dispatcher, search_id)
    assert states(store, other) == [QUEUED, FAILED]  # there is no such device


@pytest.mark.nightly
def test_a_server_that_gets_a_search_back_from_one_on_another_machine_does_not_use_its_older_files(
    store: Store, state: Path, replaying: Replaying, tmp_path: Path, submit: Callable[..., str]
) -> None:
    search_id = submit()
    for attempt, place in enumerate((state, tmp_path / "other"), 1):
        replaying.release() if attempt > 1 else None
        with dispatching(dispatcher_of(store, place, replaying)):
            when(store, search_id, lambda search: search.attempt == attempt and len(trials_of(store, search_id)) > 1)  # noqa: B023
            replaying.hold()
    replaying.release()
    with dispatching(dispatcher_of(store, state, replaying)):
        search = ended(store, search_id)
    assert (search.state, search.attempt) == (DONE, 3)
    assert faults(store, state, search) == []
    kept = {trial.number: trial.measurement for trial in TuningResult.load(study_of(state, search_id)).trials}
    events = [event.body for event in store.events(search_id, limit=5000) if event.kind == "trial"]
    assert {body["number"]: body["measurement"] for body in events} == {
        number: measurement.to_dict() for number, measurement in kept.items()
    }


def test_what_an_earlier_server_left_running_is_killed_after_the_grace(
    store: Store, state: Path, tmp_path: Path, submit: Callable[..., str]
) -> None:
    """A runner of a killed server that does not end, as one that hangs in the kernel."""
    replaying = Replaying(tmp_path / "replaying")
    search_id = submit()
    claimed = store.claim(["cpu"])
    assert claimed is not None
    study = study_of(state, search_id)
    hanging = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(study)], env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True
    )
    assert becomes_true(lambda: (study / ".lock").exists(), 20)
    store.started(search_id, 1, hanging.pid, psutil.Process(hanging.pid).create_time())
    dispatcher = dispatcher_of(store, state, replaying, grace_s=1.0)
    with dispatching(dispatcher):
        assert hanging.wait(30) == -signal.SIGKILL
        when(store, search_id, lambda search: search.attempt == 2 and search.pid)
        cancelled(store, dispatcher, search_id)


@pytest.mark.parametrize(("number", "restarts"), [(0, 1), (None, 0)])
def test_a_search_that_ran_when_its_server_died_counts_a_restart_and_one_that_did_not_counts_none(
    number: int | None, restarts: int, store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    search_id = submit()
    store.claim(["cpu"])
    if number is not None:
        store.started(search_id, 1, 2**22 + 1, 1.0)  # a process that is gone
    asyncio.run(dispatcher_of(store, state, replaying)._recover(Run(store.running()[0])))
    after = store.read(search_id)
    assert (after.state, after.interruptions, after.restarts) == (QUEUED, 0, restarts)


def test_a_server_that_lost_its_lock_kills_nothing(
    engine: Any, state: Path, replaying: Replaying, tmp_path: Path
) -> None:
    with (
        ServerLock(engine, state) as lock,
        bounded(subprocess.Popen(["sleep", "1000"], start_new_session=True)) as runner,
    ):
        store = Store(engine, lock=lock)
        search_id = store.submit("anna", "a search", REQUEST)[0].id
        store.claim(["cpu"])
        store.started(search_id, 1, runner.pid, psutil.Process(runner.pid).create_time())
        (state / "serve.lock").unlink()
        with ServerLock(engine, state):
            dispatcher = dispatcher_of(store, state, replaying, grace_s=-1.0)
            with pytest.raises(DatabaseTaken):
                asyncio.run(dispatcher._recover(Run(store.running()[0])))
            assert runner.poll() is None


def test_a_cancellation_that_meets_a_wake_is_not_lost(
    store: Store, state: Path, replaying: Replaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = dispatcher_of(store, state, replaying)

    async def turn() -> None:
        """Of the loop, without the database."""

    async def cancelled_between() -> None:
        for turns in range(8):  # of the loop, between the wake and the cancellation
            running = asyncio.create_task(dispatcher.run())
            await asyncio.sleep(0.01)
            dispatcher.wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            assert (await asyncio.wait([running], timeout=5))[0], turns

    monkeypatch.setattr(dispatcher, "_tick", turn)
    asyncio.run(cancelled_between())


HANGING = """
import sys, time
from pathlib import Path
from autotune.study.store import locked
with locked(Path(sys.argv[1])):
    time.sleep(1000)
"""


def test_a_process_that_has_the_number_of_a_dead_runner_is_left_alone(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    search_id = submit()
    assert store.claim(["cpu"]) is not None
    with bounded(subprocess.Popen(["sleep", "1000"], start_new_session=True)) as other:
        store.started(search_id, 1, other.pid, psutil.Process(other.pid).create_time() - 100)
        dispatcher = dispatcher_of(store, state, replaying, grace_s=0.1)
        with dispatching(dispatcher):
            when(store, search_id, lambda search: search.attempt == 2 and search.pid)
            cancelled(store, dispatcher, search_id)
        assert other.poll() is None


def test_a_search_does_not_fail_because_the_database_is_away_while_its_folder_is_made(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search_id = submit()
    for attempt in (1, 2):
        claimed = store.claim(["cpu"])
        assert claimed is not None
        if attempt == 1:
            store.requeue(search_id, 1, "it crashed")
    dispatcher, real, calls = dispatcher_of(store, state, replaying), store.begin_again, []

    def away_once(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == 1:
            raise DatabaseAway("The database cannot be used.", "Wait.")
        return real(*arguments)

    async def carry_out(*_: Any) -> dict[str, Any]:
        return {"state": DONE}

    monkeypatch.setattr(store, "begin_again", away_once)
    monkeypatch.setattr(dispatcher, "_carry_out", carry_out)
    asyncio.run(dispatcher._run(Run(claimed)))
    assert (store.read(search_id).state, len(calls)) == (DONE, 2)


@pytest.mark.nightly
def test_old_searches_lose_their_events_and_their_folder_and_keep_their_result(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str]
) -> None:
    search_id = submit()
    with dispatching(dispatcher_of(store, state, replaying, keep=timedelta(days=1))):
        assert ended(store, search_id).state == DONE
    assert (state / "searches" / search_id).exists()
    with dispatching(dispatcher_of(store, state, replaying, keep=timedelta(0))):
        assert becomes_true(lambda: not (state / "searches" / search_id).exists(), 20)
    assert not store.events(search_id)
    assert store.read(search_id).result is not None
    assert store.artifact(search_id, "report.html") is not None


def test_of_a_log_of_any_length_only_the_end_is_read(store: Store, submit: Callable[..., str], tmp_path: Path) -> None:
    search = store.read(submit())
    assert search is not None
    with (tmp_path / "log").open("wb") as file:
        file.truncate(2**40)  # without blocks on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe last line\n")
    assert death(Run(search), tmp_path / "log").endswith(": the last line")


SECRETS = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy", "PGPASSWORD", "SSH_AUTH_SOCK", "AUTOTUNE_OIDC_SECRET")


@pytest.mark.parametrize(("hub", "offline"), [("off", "1"), ("cached", "1"), ("online", None)])
def test_a_search_gets_none_of_the_servers_secrets(hub: str, offline: str | None, tmp_path: Path) -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "LC_ALL": "C.UTF-8"}
    given = kept | {"HOME": "/root", "HF_HOME": "/srv/hub", "PYTHONPATH": "/srv/more"}
    environment = runner_environment(tmp_path, hub, given | dict.fromkeys(SECRETS, "secret"))
    assert environment.pop("HF_HUB_OFFLINE", None) == offline
    assert environment.pop("HF_HUB_CACHE", None) == (None if hub == "off" else "/srv/hub/hub")
    assert environment == kept | {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "huggingface"),
        "PYTHONPATH": f"/srv/more{os.pathsep}{ROOT}",
    }


def test_no_process_of_a_search_has_a_secret_in_its_environment(
    store: Store, state: Path, replaying: Replaying, submit: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "a-secret-of-the-server")
    monkeypatch.setenv("PYTHONPATH", replaying.environment["PYTHONPATH"])
    replaying.hold()
    search_id = submit()
    dispatcher = Dispatcher(store, Devices(["cpu"]), Roots(), state)
    with dispatching(dispatcher):
        assert becomes_true(lambda: bool(replaying.executed), 60)
        running = when(store, search_id, lambda search: search.pid)
        family = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
        assert len(family) == 4  # search, supervisor, host, child
        environments = [Path(f"/proc/{process.pid}/environ").read_bytes() for process in family]
        cancelled(store, dispatcher, search_id)
    assert not [environment for environment in environments if b"a-secret-of-the-server" in environment]
