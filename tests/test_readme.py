"""The README is true: its commands and its Python run, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("$ autotune")
]
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is a checkout as far as the README's paths go."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "tests").symlink_to(ROOT / "tests")
    data = [sys.executable, str(ROOT / "tests" / "data" / "python_topics.py"), str(folder / "reports/data/topics.txt")]
    subprocess.run(data, check=True)
    return folder


def run(command: list[str], folder: Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, timeout=600, env=environment)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_runs(command: str, folder: Path) -> None:
    # Fewer trials and shorter samples than a reader would take: all else is as it stands there.
    words = re.sub(r"--n-trials \d+", "--n-trials 1", command).split()
    if words[1] == "guide":
        words += ["--sequence-length", "8"]
    assert words[0] == "autotune"
    done = run([sys.executable, "-m", *words], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", PYTHON)
def test_every_python_block_of_the_readme_runs_to_its_last_assert(code: str, folder: Path) -> None:
    assert "assert" in code.strip().splitlines()[-1]
    done = run([sys.executable, "-"], folder, re.sub(r"n_trials=\d+", "n_trials=1", code))
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_commands_and_python() -> None:
    assert len(COMMANDS) >= 4
    assert PYTHON


def test_every_file_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
    for path in re.findall(r"`(autotune/[\w/.]+|search_spaces/[\w/.]*|tests/[\w/.]+)`", TEXT):
        assert (ROOT / path).exists(), path
