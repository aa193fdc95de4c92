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

from autotune.service.body import Roots
from autotune.service.devices import Device, Devices
from autotune.service.dispatcher import Dispatcher, runner_environment
from autotune.service.store import ENDED, Search, Store
from autotune.service.tables import hold_database, open_database
from tests.service.searches import Replaying

CPU = Devices((Device("cpu", "a CPU"),))


def dispatcher_of(
    store: Store, state: Path, replaying: Replaying, devices: Devices = CPU, **options: Any
) -> Dispatcher:
    """A dispatcher whose searches are replayed, and carry the state folder as a mark."""
    environment = runner_environment(state, given=replaying.environment) | {"AUTOTUNE_TEST": str(state)}
    return Dispatcher(store, devices, Roots(), state, environment=environment, **{"backoff_s": 0.01, **options})


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
