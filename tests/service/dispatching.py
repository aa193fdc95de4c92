"""A dispatcher in a thread of a test, or as a process of its own that a test kills.

python -m tests.service.dispatching URL STATE REPLAYING: dispatches the searches of this database until SIGTERM.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.commands.result import TuningResult
from autotune.service.body import Roots
from autotune.service.devices import Devices
from autotune.service.dispatcher import Dispatcher, runner_environment
from autotune.service.store import ENDED, Search, Store
from autotune.service.tables import hold_database, open_database
from autotune.study.store import locked
from tests.service.searches import Replaying


def dispatcher_of(store: Store, state: Path, replaying: Replaying, *devices: str, **options: Any) -> Dispatcher:
    """A dispatcher whose searches are replayed, and carry the state folder as a mark; by default of the CPU."""
    environment = runner_environment(state, given=replaying.environment) | {"AUTOTUNE_TEST": str(state)}
    options = {"backoff_s": 0.01, "environment": environment, **options}
    return Dispatcher(store, Devices(devices or ["cpu"]), Roots(), state, **options)


@contextlib.contextmanager
def dispatching(dispatcher: Dispatcher) -> Iterator[None]:
    """Within, it runs in a thread."""
    loop = asyncio.new_event_loop()
    running = loop.create_task(dispatcher.run())

    def turn() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(running)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(running.cancel)
        thread.join()


def when(store: Store, search_id: str, holds: Callable[[Search], object], seconds: float = 90.0) -> Search:
    """The search, once this holds of it."""
    until = time.monotonic() + seconds
    while True:
        search = store.read(search_id)
        assert search is not None
        if holds(search):
            return search
        assert time.monotonic() < until, search
        time.sleep(0.02)


def ended(store: Store, search_id: str) -> Search:
    """The search, once it has ended."""
    return when(store, search_id, lambda search: search.state in ENDED)


def states(store: Store, search_id: str) -> list[str]:
    return [event.body["state"] for event in store.events(search_id) if event.kind == "state"]


def trials_of(store: Store, search_id: str) -> list[int]:
    """Numbers of the trials that were sent, in order."""
    return [event.body["number"] for event in store.events(search_id, limit=5000) if event.kind == "trial"]


def check_ended_once(store: Store, state: Path, search: Search) -> None:
    """It has one end, each trial and round of its folder as one event, its files, and nobody holds its folder."""
    events = store.events(search.id, limit=5000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.body["state"] for event in events if event.kind == "state"].count(search.state) == 1
    assert (events[-1].kind, events[-1].body["state"]) == ("state", search.state)
    assert len({event.key for event in events}) == len(events)
    folder = state / "searches" / search.id / "study"
    result = TuningResult.load(folder)
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))
    assert sorted(trials_of(store, search.id)) == list(range(len(result.trials)))
    rounds = [f"round:{trial.number}:{number}" for trial in result.trials for number in trial.rounds]
    assert sorted(event.key for event in events if event.kind == "confirmed") == sorted(rounds)
    assert search.result == {name: value for name, value in result.to_dict().items() if name != "folder"}
    names = {artifact.name for artifact in store.artifacts(search.id)}
    assert names >= {"report.html", "result.json", "request.json", "study.tar.gz"}
    for name in ("report.html", "result.json"):
        kept = store.artifact(search.id, name)
        assert kept is not None
        assert kept[1] == (folder / name).read_bytes()
    with locked(folder):
        pass


def serve(url: str, state: Path, replaying: Replaying) -> subprocess.Popen[bytes]:
    """The process of below."""
    words = [sys.executable, "-m", "tests.service.dispatching", url, str(state), str(replaying.folder)]
    with (state / "serve.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | {"AUTOTUNE_TEST": str(state)})


async def _dispatch(dispatcher: Dispatcher) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await dispatcher.run()


def main() -> None:
    url, state, replaying = sys.argv[1], Path(sys.argv[2]), Replaying(Path(sys.argv[3]))
    engine = open_database(url)
    with hold_database(engine, state), contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_dispatch(dispatcher_of(Store(engine), state, replaying)))


if __name__ == "__main__":
    main()
