"""A PostgreSQL server of its own, which can be killed."""

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import psycopg

from autotune.service.tables import SERVER


def program(name: str) -> str | None:
    """Path of a program of PostgreSQL; None if it is not installed."""
    return shutil.which(name) or next(map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)


class Postgres:
    """As a context: a server with an empty database. Raises FileNotFoundError where PostgreSQL is not installed."""

    def __init__(self) -> None:
        initdb, pg_ctl = program("initdb"), program("pg_ctl")
        if initdb is None or pg_ctl is None:
            raise FileNotFoundError("PostgreSQL (initdb)")
        self._initdb, self._pg_ctl = initdb, pg_ctl

    def __enter__(self) -> "Postgres":
        self._folder = Path(tempfile.mkdtemp(prefix="kills-postgres-"))
        self._data = self._folder / "data"
        if os.getuid() == 0:
            shutil.chown(self._folder, "postgres", "postgres")
        self._call(self._initdb, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        self.url = f"postgresql://postgres@/postgres?host={self._folder}"
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._pg_ctl, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, program: str, *words: str) -> None:
        user = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
        command = [*user, program, "-D", str(self._data), *words]
        subprocess.run(
            command, cwd=self._folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300
        )

    def start(self) -> None:
        """Start it where it does not run, and wait until it answers; what a killed one left may have to end first."""
        options = f"-k {self._folder} -c listen_addresses='' -c fsync=off"
        until = time.monotonic() + 60
        while not self._answers():
            if not self._runs():
                with contextlib.suppress(subprocess.CalledProcessError):
                    self._call(self._pg_ctl, "-o", options, "-l", str(self._folder / "log"), "-w", "start")
            assert time.monotonic() < until, (self._folder / "log").read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=5).close()
            return True
        return False

    def _runs(self) -> bool:
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            return psutil.Process(self._pid()).status() != psutil.STATUS_ZOMBIE
        return False

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def kill(self, chance: random.Random) -> float:
        """Kill the server, or one of its processes, after which it ends all others; returns when (monotonic, seconds)."""
        server = psutil.Process(self._pid())
        chance.choice([server, server, *server.children()]).kill()
        return time.monotonic()

    def cut(self, chance: random.Random) -> float:
        """End some of its sessions, of which it has at least one; returns when (monotonic, seconds)."""
        others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        with psycopg.connect(self.url, autocommit=True) as connection:
            pids = [pid for (pid,) in connection.execute(others)]
            for pid in chance.sample(pids, chance.randint(min(1, len(pids)), len(pids))):
                connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        return time.monotonic()

    def is_held(self) -> bool:
        """Whether a server of the service has its lock."""
        held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = %s"
        with psycopg.connect(self.url) as connection:
            return connection.execute(held, [SERVER]).fetchone() is not None
