"""The script that gathers evidence of a GPU, run on the CPU: each part ends with its archive."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from tests.hurry import ROOT, hurried

SCRIPT = ROOT / "tests" / "gpu" / "evidence.sh"
STUDIES = {
    1: {"first"},
    2: {"bert", "bert-over-bf16"},
    3: {"bert-limited"},
    4: {"gpt2", "bert-compiled"},
    5: {"llama-1b", "llama-8b"},
}


def start(part: int, folder: Path, recorded: bool) -> subprocess.Popen[str]:
    variables = {"DEVICE": "cpu", "PYTHON": sys.executable, "WORK": str(folder / "work")}
    return subprocess.Popen(
        [str(SCRIPT), str(part), str(folder)],
        env=(hurried(recorded=True) if recorded else dict(os.environ)) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def studies(part: int, folder: Path) -> set[str]:
    """Names of the studies in the archive that have a result."""
    with tarfile.open(folder / f"evidence-{part}.tgz") as archive:
        names = archive.getnames()
    assert not [name for name in names if name.endswith(("study.db", "log.txt", ".lock"))]
    return {name.split("/")[1] for name in names if name.endswith("/result.json")}


@pytest.mark.nightly
@pytest.mark.parametrize("part", STUDIES)
def test_every_part_runs_to_its_archive(part: int, tmp_path: Path) -> None:
    process = start(part, tmp_path, recorded=True)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert studies(part, tmp_path) == STUDIES[part]


@pytest.mark.nightly
def test_the_first_part_runs_with_real_probes(tmp_path: Path) -> None:
    process = start(1, tmp_path, recorded=False)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    assert studies(1, tmp_path) == STUDIES[1]


@pytest.mark.nightly
def test_sigterm_in_the_middle_leaves_a_report_in_the_archive(tmp_path: Path) -> None:
    process = start(2, tmp_path, recorded=False)
    measured = tmp_path / "work" / "part-2" / "bert" / "probes" / "0000" / "measurement.json"
    until = time.monotonic() + 300
    while not measured.exists() and time.monotonic() < until:
        time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in (124, 143), output
    assert studies(2, tmp_path) == {"bert"}


def test_without_part_and_folder_its_usage_is_shown() -> None:
    for words in ([], ["6", "."], ["1"]):
        done = subprocess.run([str(SCRIPT), *words], capture_output=True, text=True)
        assert done.returncode == 2
        assert "tests/gpu/evidence.sh PART FOLDER" in done.stderr
