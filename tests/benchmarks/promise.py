"""What a search promises against what a plain script gets with the answer's files, under the same memory limit.

python tests/benchmarks/promise.py: one search of gpt2-mini on the CPU with some trials out of memory, then the plain
script several times with the answer and with the baseline, interleaved. Run it on an idle machine.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import write_table

ROOT = Path(__file__).parents[2]
LIMIT = "600MiB"
ROUNDS, SECONDS = 3, 20


def plain(folder: Path) -> dict[str, float]:
    """What the plain script got."""
    command = [sys.executable, str(ROOT / "tests" / "plain_training.py"), str(folder), str(600 * 2**20), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def with_arguments(folder: Path, copy: Path, fields: dict[str, object]) -> Path:
    """A copy of the report with other training arguments as its answer."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("probes", "study.db"), dirs_exist_ok=True)
    (copy / "best_training_arguments.json").write_text(json.dumps(fields))
    return copy


def row(told: dict[str, Any] | None, median: float, peak: str) -> str:
    """The middle columns; dashes where nothing was promised."""
    if told is None:
        return f"found by the Trainer, 48 x 1 at first | - | {median:.2f} | - | - | {peak}"
    value, low, high = (told[f"samples_per_second{which}"] for which in ("", "_low", "_high"))
    levers = ", ".join(f"{lever} {value}" for lever, value in told["levers"].items())
    sizes = f"{told['micro_batch_size']} x {told['gradient_accumulation_steps']}"
    promised = f"{value:.2f} ({low:.2f} to {high:.2f})"
    memory = f"{told['peak_bytes'] / 2**20:.0f} MiB"
    return f"{sizes}, {levers} | {promised} | {median:.2f} | {value / median - 1:+.1%} | {memory} | {peak}"


def main() -> None:
    reports = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    command = ["autotune", "search", "gpt2-mini", "--global-batch-size", "48", "--sequence-length", "96"]
    command += ["--device", "cpu", "--memory-limit", LIMIT, "--n-trials", "20", "--json", "--output-dir", str(reports)]
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"the search ended with exit code {done.returncode}")
    told = json.loads(done.stdout)
    folder = Path(told["folder"])
    fields = json.loads((folder / "probes" / "0000" / "order.json").read_text())["training_arguments"]
    finder = {"per_device_train_batch_size": 48, "gradient_accumulation_steps": 1, "use_cpu": True}
    folders = {
        "best": folder,
        "baseline": with_arguments(folder, reports / "baseline", fields),
        "auto_find_batch_size": with_arguments(folder, reports / "finder", finder | {"auto_find_batch_size": True}),
    }
    got: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
    for one_round in range(ROUNDS):
        names = list(folders)
        for name in names[one_round:] + names[:one_round]:
            got[name].append(plain(folders[name]))
    rows = [
        "| what | configuration | promised samples/s | got (median of rounds) | error | promised peak | got | batch |"
    ]
    rows.append("|---|---|---|---|---|---|---|---|")
    for name, runs in got.items():
        median = statistics.median(run["samples_per_second"] for run in runs)
        peak = f"{max(run['peak_bytes'] for run in runs) / 2**20:.0f} MiB"
        batch = max(run["global_batch_size"] for run in runs)
        assert not any(run["imports_autotune"] for run in runs)
        rows.append(f"| {name} | {row(told.get(name), median, peak)} | {batch} |")
    outcomes = [
        json.loads(path.read_text())["outcome"] for path in sorted((folder / "probes").glob("[0-9]*/measurement.json"))
    ]
    counts = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes))
    rows += [
        "",
        f"{told['headline']} Trials: {counts}. Limit {LIMIT}; the plain script holds itself to it with RLIMIT_DATA.",
    ]
    write_table(ROOT / "reports" / "promise.md", "Promised against got", rows)


if __name__ == "__main__":
    main()
