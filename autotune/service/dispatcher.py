"""Dispatcher: starts, watches, cancels and recovers the processes of running searches.

    claim a queued search ─> runner (autotune/service/runner.py) ─> events ─> end, with its files, in one transaction
             ▲                   │ died without an end
             └─ queued again  <──┘ five times: failed

Each row that is running belongs to a task here; one without a task was left by a server that ended, and is recovered.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import psutil
import structlog

from autotune.core.errors import AutotuneError, StorageFailed, StudyInUse
from autotune.core.paths import scrubbed
from autotune.service.body import Roots, job_of
from autotune.service.devices import Devices
from autotune.service.runner import STUDY, problem
from autotune.service.store import FAILED, Search, Store
from autotune.study.store import check_unlocked

TICK_S = 5.0
"""How often the queue is looked at without a reason."""

RETENTION_S = 3600.0
"""How often old events and folders are removed."""

LOG_BYTES = 2**16
"""Of a runner's log that are kept when it is started again."""

INHERITED = re.compile(
    r"PATH|LD_LIBRARY_PATH|(CUDA|NVIDIA|OMP|LC)_.*|LANG|TZ|TMPDIR|PYTHONPATH|VIRTUAL_ENV|PYTHONDONTWRITEBYTECODE"
)
"""Variables of the server that its searches get: no others, which may be secrets."""

P, R = ParamSpec("P"), TypeVar("R")
log = structlog.get_logger()


def runner_environment(state: Path, hub: str = "off", given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a search's process; its home and caches lie below the state folder. hub: as `Roots.hub`.

    The server's own Hugging Face cache is used where the hub is not off; a token for it is read from below the state folder.
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
    cancel: str | None = None  # what its process was sent

    def kill(self) -> None:
        """End its process and those of its group; what is below them ends by itself."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let its process know that the server is gone."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()


class Dispatcher:
    """Runs queued searches on free devices until `run` is cancelled; the only one of its database.

    state: folder of the service. keep: how long events and folders of ended searches stay. most_of_user: searches of a user
    that run at the same time. environment: variables of a search's process, by default `runner_environment`.
    grace_s: seconds that a process has to end once it has to. backoff_s: half of the wait after the first interruption,
    which doubles at each further one.
    """

    def __init__(
        self,
        store: Store,
        devices: Devices,
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
        self.environment = runner_environment(self.state, roots.hub) if environment is None else environment
        self.ticked_at = time.monotonic()
        self._runs: dict[str, Run] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._stopping = False
        self._forgot_at = -RETENTION_S

    def folder(self, search_id: str) -> Path:
        """The folder of a search: its study, its log and what it was given."""
        return self.state / "searches" / search_id

    def wake(self) -> None:
        """Look at the queue soon; from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Dispatch until cancelled; then the processes are ended, and their searches stay running to be recovered."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self.ticked_at = time.monotonic()
                self._woken.clear()
                try:
                    await self._tick()
                except Exception:
                    log.exception("the queue could not be read")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), TICK_S)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._stopping = True
        tasks = {run.task for run in self._runs.values() if run.task is not None}
        for run in self._runs.values():
            run.close()
        for end in (Run.kill, lambda run: run.task and run.task.cancel()):
            if tasks:
                _, tasks = await asyncio.wait(tasks, timeout=self.grace_s)
            for run in [run for run in self._runs.values() if run.task in tasks]:
                end(run)

    async def _tick(self) -> None:
        """Recover, cancel, claim and start."""
        running = await asyncio.to_thread(self.store.running)
        for search in running:
            if (run := self._runs.get(search.id)) is None:
                self._begin(search, self._recover)
            elif run.process is not None and search.cancel not in (None, run.cancel):
                self._cancel(run, search.cancel)
        lent = [search.lent for search in running]
        while free := self.devices.free(lent):
            search = await asyncio.to_thread(self.store.claim, free, self.most_of_user)
            if search is None:
                break
            lent.append(search.lent)
            self._begin(search, self._run)
        if self.keep is not None and time.monotonic() > self._forgot_at + RETENTION_S:
            self._forgot_at = time.monotonic()
            for search_id in await asyncio.to_thread(self.store.forget, datetime.now(UTC) - self.keep):
                await asyncio.to_thread(shutil.rmtree, self.folder(search_id), ignore_errors=True)

    def _begin(self, search: Search, what: Callable[[Run], Any]) -> None:
        run = self._runs[search.id] = Run(search)
        run.task = asyncio.create_task(self._look_after(run, what))

    async def _look_after(self, run: Run, what: Callable[[Run], Any]) -> None:
        try:
            await what(run)
        except Exception:
            log.exception("a search could not be run", search=run.search.id)
            run.kill()
            await self._requeue(run, "the service failed; its log shows why")
        finally:
            del self._runs[run.search.id]
            self.wake()

    def _cancel(self, run: Run, how: str) -> None:
        assert run.process is not None
        assert run.process.stdin is not None
        assert self._loop is not None
        run.cancel = how
        run.process.stdin.write(f"{how}\n".encode())
        if how == "now":
            self._loop.call_later(self.grace_s, run.kill)

    async def _recover(self, run: Run) -> None:
        """Wait for the process that an earlier server started, which ends by itself; kill it after the grace; queue again."""
        search, until = run.search, time.monotonic() + self.grace_s
        log.info("a search is recovered", search=search.id, pid=search.pid)
        while not self._stopping and (is_alive(search) or await asyncio.to_thread(is_locked, self.folder(search.id))):
            if time.monotonic() > until and is_alive(search) and search.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(search.pid, signal.SIGKILL)
            await asyncio.sleep(0.1)
        await self._requeue(run, "the server was started again")

    async def _run(self, run: Run) -> None:
        """Start a claimed search, store what it sends, and end it or queue it again."""
        search, folder = run.search, self.folder(run.search.id)
        try:
            options = await asyncio.to_thread(self._prepare, search, folder)
        except AutotuneError as error:  # a model or data set is not there any more
            end: dict[str, Any] | None = {"state": FAILED, "problem": problem(error)}
        else:
            end = await self._carry_out(run, folder, options)
        if end is None or end["state"] == "interrupted":
            await self._requeue(run, end["problem"]["message"] if end else await self._death(run, folder))
            return
        files = await asyncio.to_thread(
            lambda: {Path(name).name: (folder / name).read_bytes() for name in end.get("files", ())}
        )
        answer = {name: end.get(name) for name in ("headline", "statement", "result", "problem")}
        await self._stored(self.store.end, search.id, search.attempt, end["state"], artifacts=files, **answer)
        log.info("a search has ended", search=search.id, state=end["state"])

    def _prepare(self, search: Search, folder: Path) -> dict[str, Any]:
        """Make its folder, and resolve the names of its request; raises InvalidRequest."""
        for place in (folder, self.state / "home"):
            place.mkdir(parents=True, exist_ok=True)
        path = folder / "runner.log"
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.write_bytes(path.read_bytes()[-LOG_BYTES:])
        return job_of(search.request, self.roots, folder, search.lent or "auto") | {"output_dir": str(folder)}

    async def _carry_out(self, run: Run, folder: Path, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """Run the search's process and store its events; its end, None where it died before."""
        search = run.search
        with (folder / "runner.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "autotune.service.runner"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                cwd=folder,
                env=self.environment,
                start_new_session=True,
            )
        run.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(psutil.Error):
            born = psutil.Process(process.pid).create_time()
            # What it is to do it learns only once the database knows of it: without that it ends with the server.
            if await self._stored(self.store.started, search.id, search.attempt, process.pid, born):
                order = {"run": f"{search.attempt}", "options": options}
                process.stdin.write(f"{json.dumps(order)}\n".encode())
                log.info("a search is started", search=search.id, device=search.lent, pid=process.pid)
                self.wake()  # it may have been cancelled meanwhile
        if self._stopping:
            run.close()
        end, rest = None, b""
        while chunk := await process.stdout.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            messages = [message for line in lines if (message := _parsed(line))]
            if events := [message["event"] for message in messages if "event" in message]:
                await self._stored(self.store.add_events, search.id, search.attempt, events)
            end = next((message["end"] for message in messages if "end" in message), end)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), self.grace_s)
        run.kill()
        await process.wait()
        return end

    async def _death(self, run: Run, folder: Path) -> str:
        """How the process of a search ended, with the last line of its log."""
        code = run.process.returncode if run.process is not None else None
        how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
        lines = (await asyncio.to_thread((folder / "runner.log").read_text, errors="replace")).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
        return f"The search's process {how}{scrubbed(f': {last}') if last else '.'}"

    async def _requeue(self, run: Run, reason: str) -> None:
        """Queue it again, unless the server ends: the next one recovers it. A started one waits longer each time."""
        if self._stopping:
            return
        search, delay_s = (
            run.search,
            self.backoff_s * 2 ** (run.search.interruptions + 1) if run.process is not None else 0.0,
        )
        after = await self._stored(self.store.requeue, search.id, search.attempt, reason, delay_s)
        log.warning("a search was interrupted", search=search.id, reason=reason, state=after.state)
        if self._loop is not None:
            self._loop.call_later(delay_s + 0.01, self.wake)

    async def _stored(self, call: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """What this call to the store returns; repeated while the database is away, which no call minds."""
        delay_s = 0.1
        while True:
            try:
                return await asyncio.to_thread(call, *args, **options)
            except StorageFailed as error:
                log.error("the database does not answer", error=f"{error}")
                await asyncio.sleep(delay_s)
                delay_s = min(TICK_S, 2 * delay_s)


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of a runner; empty for one that a signal cut off."""
    try:
        message = json.loads(line or b"{}")
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def is_alive(search: Search) -> bool:
    """Whether the process that an earlier server started for this search still runs."""
    try:
        process = psutil.Process(search.pid or 0)
        same = abs(process.create_time() - (search.pid_started or 0.0)) < 1.0
        return search.pid is not None and same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_locked(folder: Path) -> bool:
    """Whether some process works on the study of the search in this folder."""
    try:
        check_unlocked(folder / STUDY)
    except StudyInUse:
        return True
    return False
