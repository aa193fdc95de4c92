"""Standard streams that are closed or full, and a machine without what is needed: one line and the right exit code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.makers import result
from tests.terminals import environment_with

PROGRAM = f"{sys.executable} -m autotune"


def shell(command: str, folder: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """A command of a shell, run in this folder."""
    environment = environment_with(PYTHONPATH=str(Path(__file__).parents[2]))
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False, **options
    )  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study."""
    folder = tmp_path_factory.mktemp("streams")
    result().save(folder / "reports" / "first")
    return folder


@pytest.mark.parametrize("words", ["--version", "report first", "search-spaces --json"])
def test_what_is_written_to_a_closed_stream_is_lost_and_no_error(words: str, folder: Path) -> None:
    done = shell(f"{PROGRAM} {words} >&-", folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_a_command_opens_never_take_a_closed_stream_s_place(folder: Path) -> None:
    done = shell(f"{PROGRAM} report first --output out.csv <&- >&- 2>&-", folder)
    assert done.returncode == 0
    assert (folder / "out.csv").read_text().startswith("number,")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", ["--version", "report first"])
@pytest.mark.parametrize("buffered", ["", "PYTHONUNBUFFERED=1 "])
def test_a_stream_that_is_full_is_one_line(words: str, buffered: str, folder: Path) -> None:
    done = shell(f"{buffered}{PROGRAM} {words} > /dev/full", folder)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Error: Standard output cannot be written: No space left on device."]


def test_what_the_encoding_of_the_terminal_lacks_is_replaced(folder: Path) -> None:
    for command in ("studies", "report first", "report first --format csv"):
        done = shell(f"PYTHONIOENCODING=ascii {PROGRAM} {command}", folder)
        assert (done.returncode, done.stderr) == (0, "")
    assert "?" in shell(f"PYTHONIOENCODING=ascii {PROGRAM} studies", folder).stdout


def test_an_error_keeps_its_exit_code_where_nobody_reads_it(folder: Path) -> None:
    assert shell(f"{PROGRAM} search bert-mini -b 0 2>&-", folder).returncode == 2


@pytest.mark.parametrize(
    "error", ["BlockingIOError(11, 'Resource temporarily unavailable')", 'RuntimeError("can\'t start new thread")']
)
def test_a_limit_of_processes_that_autotune_itself_reaches_is_one_line(error: str, folder: Path) -> None:
    program = f"""
import autotune.__main__ as main
import autotune.cli.app as cli


def app(**_):
    raise {error}


cli.app = app
main.main()
"""
    environment = environment_with(PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: No further process or thread may start (raise ulimit -u")
