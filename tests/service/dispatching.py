"""A dispatcher in a thread of a test, and what must hold of the searches that it has run."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.commands.result import TuningResult
from autotune.core.errors import InvalidRequest
from autotune.service.devices import Devices
from autotune.service.dispatcher import Dispatcher, runner_environment
from autotune.service.records import ENDED, Search
from autotune.service.roots import Roots
from autotune.service.store import Store
from autotune.service.tables import DatabaseTaken
from autotune.study.store import locked
from tests.service.searches import Replaying, study_of

END_S = 90.0
"""Seconds that a dispatcher may take to end: its searches have thirty."""


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
        with contextlib.suppress(asyncio.CancelledError, DatabaseTaken):
            loop.run_until_complete(running)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(running.cancel)
        thread.join(END_S)
        assert not thread.is_alive(), "it was cancelled and goes on"


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


def cancelled(store: Store, dispatcher: Dispatcher, *searches: str) -> None:
    """Have these searches end now."""
    for search_id in searches:
        store.cancel(search_id, now=True)
        dispatcher.wake()
        ended(store, search_id)


def states(store: Store, search_id: str) -> list[str]:
    return [event.body["state"] for event in store.events(search_id) if event.kind == "state"]


def trials_of(store: Store, search_id: str) -> list[int]:
    """Numbers of the trials that were sent, in order."""
    return [event.body["number"] for event in store.events(search_id, limit=5000) if event.kind == "trial"]


def faults(store: Store, state: Path, search: Search) -> list[str]:
    """What is wrong with a search that has ended `done` or `cancelled`; empty where it has one end, each trial and round of
    its folder as one event, its result and its files, and nobody holds its folder."""
    events = store.events(search.id, limit=5000)
    keys = [event.key for event in events]
    ends = [event.body["state"] for event in events if event.kind == "state"]
    study = study_of(state, search.id)
    try:
        result = TuningResult.load(study)
    except InvalidRequest as error:
        return [f"lost: {error.message}"]
    wanted = [f"trial:{trial.number}" for trial in result.trials]
    wanted += [f"round:{trial.number}:{number}" for trial in result.trials for number in trial.rounds]
    sent = [key for key in keys if key.startswith(("trial:", "round:"))]
    kept = {
        artifact.name: (store.artifact(search.id, artifact.name) or (None, b""))[1]
        for artifact in store.artifacts(search.id)
    }
    checks = {
        "lost: events have gaps": [event.seq for event in events] == list(range(1, len(events) + 1)),
        "lost: its end": bool(ends) and ends[-1] == search.state and keys[-1].startswith("state:"),
        "lost: trials have gaps": [trial.number for trial in result.trials] == list(range(len(result.trials))),
        f"lost: events {sorted({*wanted} - {*sent})}": {*wanted} <= {*sent},
        f"lost: measurements {sorted({*sent} - {*wanted})}": {*sent} <= {*wanted},
        "lost: its result": (search.result or {}) | {"folder": None} == result.to_dict() | {"folder": None},
        f"lost: files of {sorted(kept)}": {"report.html", "result.json", "request.json", "study.tar.gz"} <= {*kept},
        "doubled: events": len({*keys}) == len(keys),
        "doubled: ends": ends.count(search.state) == 1,
    }
    changed = [name for name in kept if (study / name).exists() and kept[name] != (study / name).read_bytes()]
    checks[f"lost: content of {changed}"] = not changed
    with locked(study):
        return [fault for fault, is_right in checks.items() if not is_right]
