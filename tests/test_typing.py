"""A client's type checker sees the types of autotune."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"

CLIENT = """
import autotune
from autotune.core import InvalidRequest

result = autotune.search("gpt2-mini", 8, n_trials=2)
reveal_type(result)
result.to_dict()
autotune.search("gpt2-mini", "8")
autotune.search("gpt2-mini", 8, n_trial=3)
"""


@pytest.mark.nightly
def test_a_client_is_checked_against_the_installed_package(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    venv.create(tmp_path / "venv", system_site_packages=True, symlinks=True)
    (installed,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    shutil.copytree(PACKAGE, installed / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "client.py").write_text(CLIENT, encoding="utf-8")
    python = tmp_path / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "client.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    lines = [line.partition(": ")[2] for line in checked.stdout.splitlines() if line.startswith("client.py")]
    assert 'note: Revealed type is "autotune.commands.result.TuningResult"' in lines
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 2, checked.stdout
    assert '"str"; expected "int"' in errors[0]
    assert "[call-arg]" in errors[1]
