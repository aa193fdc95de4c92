"""On Windows and macOS autotune says in one line that it needs Linux; what starts no process works there.

The other system is simulated: its name, and none of the modules and functions that only Linux or Unix has.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hurry import ROOT

STUDY = Path(__file__).parent / "data" / "studies" / "gpt2-mini-600MiB"

BEGIN = """
import enum, os, signal, sys, time
time.sleep = lambda _: None  # between attempts
# Libraries look at the system when they are imported: these are Linux's.
import filelock, httpcore2, httpx2, jinja2, pandas
import pyarrow.parquet, pydantic, rich.live, rich.table, scipy, typer.core, typer.rich_utils
name, *sys.argv = sys.argv[1:]
sys.platform = name
for module in ("fcntl", "resource", "pwd", "grp", "termios") if name == "win32" else ():
    sys.modules[module] = None
for function in ("sched_getaffinity", "sched_setaffinity", *(("fork", "killpg", "setsid") if name == "win32" else ())):
    delattr(os, function)
if name == "win32":
    del signal.SIGHUP, signal.SIGKILL, signal.SIGUSR1
    known = {number.name: int(number) for number in signal.Signals if hasattr(signal, number.name)}
    signal.Signals = enum.IntEnum("Signals", known)
"""

NEEDS_LINUX = "trains on Linux only"


def on(system: str, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + code, system, "autotune", *words]
    variables = {"PYTHONPATH": str(ROOT), "COLUMNS": "300", "HOME": os.environ["HOME"], "AUTOTUNE_TOKEN": "secret"}
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)


COMMAND_LINE = "from autotune.__main__ import main; main()"

systems = pytest.mark.parametrize("system", ["win32", pytest.param("darwin", marks=pytest.mark.nightly)])


@systems
def test_what_trains_is_refused_in_one_line(system: str) -> None:
    code = """
import autotune
for name in {*autotune.__all__} - {*autotune.ANYWHERE}:
    try:
        getattr(autotune, name)
    except ImportError as error:
        print(error)
autotune.search
"""
    done = on(system, code)
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert all(NEEDS_LINUX in line and f"this is {system}" in line for line in lines)
    assert done.stderr.strip().splitlines()[-1] == f"ImportError: {lines[0]}"
    assert done.returncode == 1


@systems
def test_the_commands_are_refused_in_one_line(system: str) -> None:
    done = on(system, COMMAND_LINE, "search", "gpt2-mini", "-b", "16")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert NEEDS_LINUX in line


@systems
@pytest.mark.parametrize("words", [["search-spaces"], ["compare", str(STUDY), str(STUDY)]])
def test_what_starts_no_process_works(system: str, words: list[str]) -> None:
    done = on(system, COMMAND_LINE, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@systems
def test_python_compares_studies_and_asks_a_server(system: str) -> None:
    code = f"""
import autotune
assert len(autotune.compare([{str(STUDY)!r}])) == 1
assert autotune.TuningResult.load({str(STUDY)!r}).trials
try:
    autotune.connect("http://127.0.0.1:1").readiness()
except autotune.errors.ServerFailed as error:
    print(error)
"""
    done = on(system, code)
    assert done.returncode == 0, done.stderr
    assert "127.0.0.1:1" in done.stdout
