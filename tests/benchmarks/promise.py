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

from machine import write_table

ROOT = Path(__file__).parents[2]
LIMIT = "600MiB"
ROUNDS, SECONDS = 3, 20


def plain(folder: Path) -> dict[str, float]:
    """What the plain script got."""
    command = [sys.executable, str(ROOT / "tests" / "plain_training.py"), str(folder), str(600 * 2**20), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    reports = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    command = ["autotune", "search", "gpt2-mini", "--global-batch-size", "48", "--sequence-length", "96"]
    command += ["--device", "cpu", "--memory-limit", LIMIT, "--n-trials", "20", "--json", "--output-dir", str(reports)]
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"the search ended with exit code {done.returncode}")
    told = json.loads(done.stdout)
    folder = Path(told["folder"])
    baseline = reports / "baseline"
    shutil.copytree(folder, baseline, ignore=shutil.ignore_patterns("probes", "study.db"), dirs_exist_ok=True)
    fields = json.loads((folder / "probes" / "0000" / "order.json").read_text())["training_arguments"]
    (baseline / "best_training_arguments.json").write_text(json.dumps(fields))

    got: dict[str, list[dict[str, float]]] = {"best": [], "baseline": []}
    for one_round in range(ROUNDS):
        for name in ("best", "baseline") if one_round % 2 == 0 else ("baseline", "best"):
            got[name].append(plain(folder if name == "best" else baseline))
    rows = ["| what | configuration | promised samples/s | got (median of rounds) | error | promised peak | got |"]
    rows.append("|---|---|---|---|---|---|---|")
    for name, runs in got.items():
        one = told[name]
        median = statistics.median(run["samples_per_second"] for run in runs)
        peak = max(run["peak_bytes"] for run in runs) / 2**20
        assert all(run["global_batch_size"] == 48 and not run["imports_autotune"] for run in runs)
        low, high = one["samples_per_second_low"], one["samples_per_second_high"]
        promised = f"{one['samples_per_second']:.2f} ({low:.2f} to {high:.2f})"
        levers = ", ".join(f"{lever} {value}" for lever, value in one["levers"].items())
        sizes = f"{one['micro_batch_size']} x {one['gradient_accumulation_steps']}"
        error = f"{one['samples_per_second'] / median - 1:+.1%}"
        memory = f"{one['peak_bytes'] / 2**20:.0f} MiB | {peak:.0f} MiB"
        rows.append(f"| {name} | {sizes}, {levers} | {promised} | {median:.2f} | {error} | {memory} |")
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
