"""Dispatcher: starts, watches, cancels and recovers the processes of running searches.

    claim a queued search ─> runner (autotune/service/runner.py) ─> events ─> end, with its files, in one transaction
             ▲                   │ died without an end
             └─ queued again  <──┘ five times: failed

Each running search belongs to a task here; a search without a task was left by a server that ended, and is recovered.
Every turn begins with the lock of the server: once another server has taken the database, this one stops.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import psutil
import structlog

from autotune.core.errors import AutotuneError, StorageFailed, StudyInUse
from autotune.core.io import file_end, read_json, write_json
from autotune.core.paths import scrubbed
from autotune.service.body import job_of
from autotune.service.cluster import ClusterDevices
from autotune.service.devices import Devices
from autotune.service.records import FAILED, Search
from autotune.service.roots import Roots
from autotune.service.runner import INTERRUPTED, problem
from autotune.service.store import Store
from autotune.service.tables import DatabaseTaken
from autotune.study.store import check_unlocked

TICK_S = 5.0
"""Seconds between looks at the queue without other cause."""

AWAY_S = 20.0
"""Seconds until a search is started again for which a cluster had no devices after all."""

RETENTION_S = 3600.0
"""Seconds between removals of old events and folders."""

LOG, LOG_BYTES = "runner.log", 2**16
"""The log of a search's process, and the bytes of it that are kept when another one is started."""

ATTEMPT = "attempt.json"
"""File in the folder of a search with the number of the last attempt that used it: servers on other machines have other ones."""

INHERITED = re.compile(
    r"PATH|LD_LIBRARY_PATH|(CUDA|NVIDIA|OMP|LC)_.*|LANG|TZ|TMPDIR|PYTHONPATH|VIRTUAL_ENV|AUTOTUNE_SPAWN"
)
"""Variables of the server that its searches get: no others, as they may be secrets."""

P = ParamSpec("P")
R = TypeVar("R")
log = structlog.get_logger("autotune")


def runner_environment(state: Path, hub: str = "off", given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a search's process; its home and caches are below the state folder. hub: as `Roots.hub`.

    The server's Hugging Face cache is used if the hub is not off; a token for it is read from below the state folder.
    """
    root = str(Path(__file__).parents[2])
    paths = [given.get("PYTHONPATH", ""), "" if root.endswith("-packages") else root]
    hub_home = Path(given.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return {
        **{name: value for name, value in given.items() if INHERITED.fullmatch(name)},
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HOME": str(state / "home"),
        "XDG_CACHE_HOME": str(state / "cache"),
        "HF_HOME": str(state / "huggingface"),
        **({"HF_HUB_CACHE": given.get("HF_HUB_CACHE") or str(hub_home / "hub")} if hub != "off" else {}),
        **({"HF_HUB_OFFLINE": "1"} if hub != "online" else {}),
    }


@dataclass
class Run:
    """A search that this dispatcher looks after."""

    search: Search
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    cancel: str | None = None  # the command sent to its process
    is_ordered: bool = False  # its process has the options of the search

    def send(self, line: str) -> None:
        """Write a line to its process; the empty one ends it as the death of the server does."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(f"{line}\n".encode()) if line else self.process.stdin.close()

    def kill(self) -> None:
        """Kill its process; its children then end themselves."""
        if self.process is not None and self.process.returncode is None:
            kill_group(self.process.pid)


class Dispatcher:
    """Runs queued searches on free devices until `run` is cancelled; the only dispatcher of its database.

    state: folder of the service. keep: time for which events and folders of ended searches stay. most_of_user: searches of a user
    that run at the same time. environment: variables of a search's process, by default `runner_environment`. grace_s: seconds
    that a process has to end. backoff_s: half of the wait after the first interruption; it doubles at each further one.
    """

    def __init__(
        self,
        store: Store,
        devices: Devices | ClusterDevices,
        roots: Roots,
        state: Path,
        keep: timedelta | None = None,
        most_of_user: int = 2,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 30.0,
        backoff_s: float = 1.0,
    ) -> None:
        self.store, self.devices, self.roots, self.state = store, devices, roots, state.absolute()
        self.keep, self.most_of_user, self.grace_s, self.backoff_s = keep, most_of_user, grace_s, backoff_s
        self.environment = environment or runner_environment(self.state, roots.hub)
        self.ticked_at, self.failure = time.monotonic(), ""  # of the last turn: why it failed, if it did
        self._runs: dict[str, Run] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        self._forgot_at = -RETENTION_S

    def folder(self, search_id: str) -> Path:
        """The folder of a search: its study and its log."""
        return self.state / "searches" / search_id

    def delete(self, search_id: str) -> None:
        """Delete an ended search and its folder; from any thread. Raises the errors of `Store.delete`."""
        self.store.delete(search_id)
        shutil.rmtree(self.folder(search_id), ignore_errors=True)

    def wake(self) -> None:
        """Look at the queue soon; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Dispatch until cancelled; then the processes are ended, and their searches stay running to be recovered.

        Raises DatabaseTaken, after the same steps.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self.ticked_at = time.monotonic()
                self._woken.clear()
                try:
                    await self._tick()
                    self.failure = ""
                except DatabaseTaken as error:
                    self.failure = error.message
                    raise
                except Exception as error:  # for example, the database is away
                    self.failure = error.message if isinstance(error, AutotuneError) else type(error).__name__
                    log.exception("queue_unreadable")
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that meets the end of what it waits for.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._woken.wait()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._stopping = True
        runs = [*self._runs.values()]
        for run in runs:
            run.send("")
        for end, seconds in ((Run.kill, self.grace_s), (lambda run: run.task and run.task.cancel(), 2.0)):
            if tasks := [run.task for run in runs if run.task is not None and not run.task.done()]:
                await asyncio.wait(tasks, timeout=seconds)
            for run in runs:
                end(run)

    async def _tick(self) -> None:
        """Recover, cancel, claim and start; remove old data."""
        await asyncio.to_thread(self.store.check_lock)
        before = {*self._runs}
        running = await asyncio.to_thread(self.store.running)
        for search in running:
            run = self._runs.get(search.id)
            if run is None and search.id not in before:  # otherwise it has just ended
                self._begin(search, self._recover)
            elif run is not None and run.is_ordered and search.cancel not in (None, run.cancel):
                log.info("search_cancelled", search=search.id, how=search.cancel)
                run.cancel = search.cancel
                run.send(search.cancel)
                if search.cancel == "now":
                    asyncio.get_running_loop().call_later(self.grace_s, run.kill)
        unserved = self.store.fail_unserved if self.devices.is_lasting else lambda _: []
        for search_id in await asyncio.to_thread(unserved, self.devices.cards):
            log.info("search_without_devices", search=search_id)
        lent = [search.lent for search in running]
        while free := self.devices.free(lent):
            claimed = await asyncio.to_thread(self.store.claim, free, self.most_of_user, self.devices.cards)
            if claimed is None:
                break
            lent.append(claimed.lent)
            self._begin(claimed, self._run)
        if self.keep is not None and time.monotonic() > self._forgot_at + RETENTION_S:
            self._forgot_at = time.monotonic()
            for search_id in await asyncio.to_thread(self.store.forget, datetime.now(UTC) - self.keep):
                await asyncio.to_thread(shutil.rmtree, self.folder(search_id), ignore_errors=True)

    def _begin(self, search: Search, what: Callable[[Run], Coroutine[Any, Any, None]]) -> None:
        async def look_after(run: Run) -> None:
            try:
                await what(run)
            except DatabaseTaken:  # the next turn meets it too
                run.kill()
            except Exception:
                log.exception("search_not_run", search=search.id)
                run.kill()
                with contextlib.suppress(DatabaseTaken):
                    await self._requeue(run, "the service failed; its log shows why")
            finally:
                del self._runs[search.id]
                self.wake()

        run = self._runs[search.id] = Run(search)
        run.task = asyncio.create_task(look_after(run))

    async def _recover(self, run: Run) -> None:
        """Wait for the process that an earlier server started, and which ends itself; kill it after the grace; queue again."""
        search, until = run.search, time.monotonic() + self.grace_s
        while not self._stopping and (is_alive(search) or await asyncio.to_thread(is_locked, self.folder(search.id))):
            if time.monotonic() > until and search.pid is not None and is_alive(search):
                await self._stored(self.store.check_lock)
                kill_group(search.pid)
            await asyncio.sleep(0.1)
        # Without a process the search was not running when its server ended, and is not at fault.
        counter = None if search.pid is None else "restarts"
        await self._requeue(run, "The server was started again.", counter, delay_s=0.0)

    async def _run(self, run: Run) -> None:
        """Run a claimed search; end it, or queue it again."""
        search, folder = run.search, self.folder(run.search.id)
        try:
            options = await self._stored(self._prepare, search, folder)
        except AutotuneError as error:  # a model or a data set is not there any more
            end: dict[str, Any] | None = {"state": FAILED, "problem": problem(error)}
        else:
            end = await self._carry_out(run, folder, options)
        if end is None or end["state"] == INTERRUPTED:
            reason = end["problem"]["message"] if end else await asyncio.to_thread(death, run, folder / LOG)
            is_away = end is not None and end["problem"]["type"] == "DevicesAway" and not self.devices.is_lasting
            await self._requeue(run, reason, None if is_away else "interruptions", AWAY_S if is_away else None)
            return
        files: dict[str, bytes] = {}
        for name in end.pop("files", ()):
            files[Path(name).name] = await asyncio.to_thread((folder / name).read_bytes)
        await self._stored(self.store.end, search.id, search.attempt, **end, artifacts=files)
        log.info("search_ended", search=search.id, state=end["state"])

    def _prepare(self, search: Search, folder: Path) -> dict[str, Any]:
        """Make its folder, and resolve the names of its request; raises InvalidRequest, and StorageFailed of the database."""
        last = folder / ATTEMPT
        if search.attempt > 1:
            last_here = read_json(last) if last.exists() else 0
            if self.store.begin_again(search.id, search.attempt, last_here) and folder.exists():
                shutil.rmtree(folder)
        for needed in (folder, Path(self.environment["HOME"])):
            needed.mkdir(parents=True, exist_ok=True)
        write_json(last, search.attempt)
        if (path := folder / LOG).exists() and path.stat().st_size > LOG_BYTES:
            path.write_bytes(file_end(path, LOG_BYTES))
        lent = search.lent or search.device
        return job_of(search.request, self.roots, folder, lent) | self.devices.options(lent, search.request)

    async def _carry_out(self, run: Run, folder: Path, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Start the search's process and store its events; its end, None if it died before."""
        search = run.search
        with (folder / LOG).open("ab") as output:
            run.process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "autotune.service.runner"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env={**self.environment, **self.devices.variables(search.lent or "")},
                start_new_session=True,
            )
        born = psutil.Process(process.pid).create_time()
        # It gets its order after the database has recorded it: a process without one ends with the server.
        if await self._stored(self.store.started, search.id, search.attempt, process.pid, born):
            cores = self.devices.cores(search.lent or "")
            run.send(json.dumps({"run": str(search.attempt), "options": options, "cores": cores}))
            run.is_ordered = True
            log.info("search_started", search=search.id, device=search.lent, pid=process.pid)
            self.wake()  # it may have been cancelled meanwhile
        if self._stopping or not run.is_ordered:
            run.send("")
        end, rest = None, b""
        assert process.stdout is not None
        while chunk := await process.stdout.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            messages: list[dict[str, Any]] = []
            for line in lines:
                with contextlib.suppress(ValueError):  # it is empty, or a signal cut it off
                    messages.append(json.loads(line))
            if events := [message["event"] for message in messages if "event" in message]:
                await self._stored(self.store.add_events, search.id, search.attempt, events)
            end = next((message["end"] for message in messages if "end" in message), end)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.grace_s):
                await process.wait()
        run.kill()
        await process.wait()
        return end

    async def _requeue(
        self, run: Run, reason: str, counter: str | None = "interruptions", delay_s: float | None = None
    ) -> None:
        """Queue it again after this wait, by default a longer one each time.

        Not while the server ends: the next one recovers it.
        """
        search = run.search
        if self._stopping:
            if run.process is not None and run.process.returncode is not None:
                await self._stored(self.store.stopped, search.id, search.attempt)
            return
        if delay_s is None:
            delay_s = self.backoff_s * 2 ** (search.interruptions + 1)
        after = await self._stored(self.store.requeue, search.id, search.attempt, reason, delay_s, counter)
        log.warning("search_interrupted", search=search.id, reason=reason, state=after.state)
        asyncio.get_running_loop().call_later(delay_s + 0.01, self.wake)

    async def _stored(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Result of this call to the store, repeated while the database is away, which changes nothing twice."""
        delay_s = 0.1
        while True:
            try:
                return await asyncio.to_thread(call, *args, **options)
            except DatabaseTaken:
                raise
            except StorageFailed as error:
                log.error("database_away", error=str(error))
                await asyncio.sleep(delay_s)
                delay_s = min(TICK_S, 2 * delay_s)


def death(run: Run, path: Path) -> str:
    """Description of the end of a search's process, with the last line of its log."""
    code = run.process.returncode if run.process else None
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
    end = file_end(path, LOG_BYTES).decode(errors="replace")
    lines = [line.strip() for line in end.splitlines() if line.strip()]
    return scrubbed(f"The search's process {how}{f': {lines[-1][:300]}' if lines else '.'}")


def kill_group(pid: int) -> None:
    """Kill the process group of this process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def is_alive(search: Search) -> bool:
    """True if the process that was started for this search still runs."""
    try:
        process = psutil.Process(search.pid or 0)
        is_same = abs(process.create_time() - (search.pid_started or 0.0)) < 1.0
        return search.pid is not None and is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_locked(folder: Path) -> bool:
    """True if a process works on the study of the search in this folder."""
    try:
        for lock in folder.glob("*/.lock"):
            check_unlocked(lock.parent)
    except StudyInUse:
        return True
    return False
