"""The script that gathers evidence of a GPU, run on the CPU: each part ends with its archive, and one report reads them."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.gpu import preflight
from tests.gpu.preflight import Line, settled_after
from tests.hurry import ROOT, hurried

sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_report import Row, goals, read, report

SCRIPT = ROOT / "tests" / "gpu" / "evidence.sh"
STUDIES = {
    "1": {"first"},
    "2": {"bert", "bert-over-bf16"},
    "5b": {"llama-8b"},
    "4": {"gpt2", "bert-compiled"},
    "3": {"bert-limited"},
    "5a": {"llama-1b"},
}
MOST_S = 600
"""Seconds of a command on a machine that is lent."""


def start(folder: Path, *words: str, recorded: bool = False, after: Sequence[str] = ()) -> subprocess.Popen[str]:
    variables = {"DEVICE": "cpu", "PYTHON": sys.executable, "WORK": str(folder / "work")}
    return subprocess.Popen(
        [str(SCRIPT), *words, str(folder), *after],
        env=(hurried(recorded=True) if recorded else dict(os.environ)) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def studies(part: str, folder: Path) -> set[str]:
    """Names of the studies in the archive that have a result."""
    with tarfile.open(folder / f"evidence-{part}.tgz") as archive:
        names = archive.getnames()
    assert not [name for name in names if name.endswith(("study.db", "log.txt", ".lock"))]
    return {name.split("/")[1] for name in names if name.endswith("/result.json")}


# The script -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("part", STUDIES)
def test_every_part_runs_to_its_archive_which_the_report_reads(part: str, tmp_path: Path) -> None:
    process = start(tmp_path, part, recorded=True)
    output, _ = process.communicate(timeout=MOST_S)
    assert process.returncode == 0, output
    assert studies(part, tmp_path) == STUDIES[part]
    archive = tmp_path / f"evidence-{part}.tgz"
    assert archive.stat().st_size < 1 << 20
    evidence = read([archive])
    assert evidence.studies.keys() == STUDIES[part]
    assert not evidence.unreadable
    text = report(evidence)
    assert text.startswith("# Evidence of a GPU: a rehearsal on a CPU\n")
    for name in STUDIES[part]:
        assert f"| {name} (rehearsal) |" in text
    rows = found(goals(evidence))
    assert {row.met for row in rows.values()} == {None}, "a rehearsal meets no goal and misses none"


@pytest.mark.nightly
def test_all_runs_what_fits_in_the_order_of_worth_and_says_what_it_left_out(tmp_path: Path) -> None:
    for _ in range(2):
        process = start(tmp_path, "all", "2")
        output, _ = process.communicate(timeout=MOST_S)
        assert process.returncode == 0, output
        assert output.splitlines()[-1].startswith("== left out: 1 (")
    assert "== part 0: ran before" in output
    evidence = read([tmp_path / "evidence-0.tgz"])
    lines = evidence.text("preflight").splitlines()
    assert len("\n".join(lines[1:-1]).encode()) < 2500, "to be read at a glance"
    assert {line.split()[0] for line in lines[1:-2]} == {each.__name__ for each in preflight.LINES}
    assert lines[-2].startswith("=> nothing that would fail")
    assert found(goals(evidence))["Preflight: what would fail"].figure.startswith("nothing, in ")


def test_parts_that_ran_or_do_not_fit_are_not_started(tmp_path: Path) -> None:
    for part in ("0", "2"):
        (tmp_path / "work" / f"part-{part}").mkdir(parents=True)
        (tmp_path / "work" / f"part-{part}" / "finished").touch()
    process = start(tmp_path, "all", "0.5")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    before, between, left = output.splitlines()
    assert (before, between) == ("== part 0: ran before", "== part 2: ran before")
    assert re.findall(r"(\w+) \(\d+ s\)", left) == ["1", "5b", "4", "3", "5a"]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tgz"]
    output, _ = start(tmp_path, "all", "0.5", after=("3", "2")).communicate(timeout=60)
    assert re.findall(r"part (\w+): ran before|(\w+) \(\d+ s\)", output) == [("2", ""), ("", "3")]


@pytest.mark.nightly
def test_sigterm_in_the_middle_leaves_a_report_in_the_archive(tmp_path: Path) -> None:
    process = start(tmp_path, "2")
    measured = tmp_path / "work" / "part-2" / "bert" / "probes" / "0000" / "measurement.json"
    until = time.monotonic() + 300
    while not measured.exists() and time.monotonic() < until:
        time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in (124, 143), output
    assert studies("2", tmp_path) == {"bert"}
    assert not (tmp_path / "work" / "part-2" / "finished").exists()
    assert "== bert: exit" in read([tmp_path / "evidence-2.tgz"]).text("bert")


def test_every_part_ends_within_a_command_even_if_each_step_has_to_be_killed() -> None:
    done = subprocess.run([str(SCRIPT), "limits"], capture_output=True, text=True, check=True, timeout=300)
    limits = {part: (int(most), int(with_grace)) for part, most, with_grace in map(str.split, done.stdout.splitlines())}
    assert [*limits] == ["0", *STUDIES]
    for most, with_grace in limits.values():
        assert most < with_grace < MOST_S
    assert sum(limits[part][0] for part in ("0", "1", "2", "5b", "4")) <= 30 * 60


# The preflight --------------------------------------------------------------------------------------------------------

HANGS = """
import json, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(json.dumps({"texts": ["halfway"], "problems": [], "facts": {"at": 1}}))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
time.sleep(1000)
"""
CRASHES = "import os, sys; print('what it was', flush=True); os.abort()"
FINDS = """
import json, sys
found = {"texts": ["slow"], "problems": [["will fail", "it is slow", "wait"]], "facts": {}}
open(sys.argv[1], "w").write(json.dumps(found))
"""


def line(name: str, code: str, deadline_s: float = 20.0) -> Line:
    return Line(name, deadline_s, (sys.executable, "-c", code))


def test_a_line_that_hangs_or_crashes_costs_itself_alone() -> None:
    shown: list[str] = []
    lines = [line("hangs", HANGS, 1.0), line("crashes", CRASHES), line("finds", FINDS), line("again", FINDS)]
    told = preflight.preflight(lines, 30.0, shown.append)
    assert [text.split(" (")[0] for text in shown[:4]] == ["hangs", "crashes", "finds", "again"]
    assert "halfway; this line has no end within 1 s" in shown[0]
    assert "crashes (SIGABRT): what it was" in shown[1]
    assert shown[4:] == [
        "=> hangs: may fail because this line has no end within 1 s / mend: look after `halfway`: preflight.py --line hangs",
        "=> crashes: may fail because this line crashes (SIGABRT): what it was / mend: look at its start: "
        "preflight.py --line crashes",
        "=> finds: will fail because it is slow / mend: wait",
    ]
    assert told["lines"]["hangs"]["facts"] == {"at": 1}


def test_what_has_no_time_left_is_said_and_not_started() -> None:
    shown: list[str] = []
    told = preflight.preflight([line("hangs", HANGS), line("finds", FINDS)], 1.5, shown.append)
    assert shown[1] == "finds: left out, no time is left"
    assert told["lines"]["finds"]["problems"] == [
        ("may fail", "finds was not looked at", "run preflight.py --line finds")
    ]
    assert shown[-1].startswith("=> finds: may fail")


def test_requirements_of_what_the_project_stands_on_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [*preflight._unmet()] == []
    usual = importlib.metadata.version

    def version(name: str) -> str:
        if name == "optuna":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.9" if name == "dill" else usual(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert {*preflight._unmet()} == {
        ("optuna", "optuna>=5.0 (by autotune)", None),
        ("dill", "dill<0.4.2,>=0.3.0 (by datasets)", "0.9"),
    }


HELD = """
import json, sys
print(json.dumps({"seconds": 0.4, "used": 500 << 20, "total": 80 << 30, "keys": ["max_split_size"]}), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("used", "mig", "problems"),
    [
        ([0, 500, 0], 0, []),
        ([2000, 2500, 2000], 1, ["the card is cut into slices", "2000 MiB are in use"]),
        ([0, 0, 0], 0, ["NVML does not see"]),
    ],
)
def test_a_card_s_context_is_seen_and_given_back(
    used: Sequence[int], mig: int, problems: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(used)
    nvml = SimpleNamespace(
        NVMLError=ValueError,
        nvmlMemory_v2=2,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "a plain card",
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetPersistenceMode=lambda _: 1,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
        nvmlDeviceGetMigMode=lambda _: (mig, mig),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [],
        nvmlDeviceGetMemoryInfo=lambda _, version: SimpleNamespace(used=next(readings) << 20),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(preflight, "ON_CUDA", True)
    monkeypatch.setattr(preflight, "CONTEXT", HELD)
    told = preflight.Found(tmp_path / "found.json")
    preflight.card(told)
    assert told.facts["watts"] == 700
    assert told.facts["context_bytes"] == (used[1] - used[0]) << 20
    assert "context 0.4 s" in told.texts[-1]
    assert "allocator settings: max_split_size" in told.texts[-1]
    assert len(told.problems) == len(problems)
    for problem, begun in zip(told.problems, problems, strict=True):
        assert problem[1].startswith(begun)
    assert json.loads((tmp_path / "found.json").read_text())["facts"] == told.facts


@pytest.mark.parametrize(
    ("rates", "settled"),
    [
        ([700.0, 700, 700, 700], 0),
        ([790.0, 760, 710, 700, 700, 700], 3),
        ([790.0, 700, 690, 700, 700, 700], 3),
        ([790.0, 760, 740, 720, 700], None),
    ],
)
def test_a_rate_has_settled_once_it_stays_within_a_hundredth(rates: Sequence[float], settled: int | None) -> None:
    assert settled_after(rates) == settled


# The report -----------------------------------------------------------------------------------------------------------


def found(rows: Sequence[Row]) -> Mapping[str, Row]:
    return {row.goal: row for row in rows}


# The Makefile ---------------------------------------------------------------------------------------------------------


def test_every_gpu_test_is_in_one_part_that_ends_within_a_command() -> None:
    done = subprocess.run(
        ["make", "-n", "gpu-check-more"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    parts = [text for text in done.stdout.splitlines() if "pytest" in text]
    files = [file for part in parts for file in re.findall(r"tests/gpu/\S+\.py", part)]
    assert sorted(files) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    for part in parts:
        grace, most = map(int, re.findall(r"timeout -s INT -k (\d+) (\d+)", part)[0])
        assert grace + most < MOST_S
