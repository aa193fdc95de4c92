"""The same baseline measured in each way that a search and its judges have: which of them is slow, and by how much?

python benchmarks/baseline_bias.py [FOLDER] [--pairs N]: N times, in an order that rotates: a search of this one trial (its probe
and one round), a host's first probe, its next round, its next probe, and a plain script's training, under the memory limit and
without. The task is that of the comparison with other tools: gpt2-mini, 96 random tokens, a global batch of 48 as 8 x 6, fp32,
600 MiB. Every measurement is kept in FOLDER at once: the same command continues where it was stopped. Needs an idle machine
for about two minutes a pair; writes FOLDER/baseline_bias.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from fidelity import ROOT, asked
from machine import write_table

from autotune.core import Configuration, Environment, Measurement, Outcome, Workload, read_json, write_json
from autotune.core.interval import quotient_interval
from autotune.core.request import tuning_request
from autotune.core.slot import Slot
from autotune.core.units import format_interval
from autotune.probe import ProbeOptions
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.runner import LiveProbe

MODEL, GLOBAL_BATCH, MICRO, LENGTH = "gpt2-mini", 48, 8, 96
LIMIT = 600 << 20
PLAIN_SECONDS = 8
SETTINGS = {"checkpointing": "none", "precision": "fp32", "optimizer": "adamw_torch_fused", "workers": 0}
PLAIN, UNLIMITED = "plain script", "plain script, no limit"
FIRST, ROUND, LATER = "probe, first of a host", "round, later", "probe, later"
SEARCHED, SEARCHED_ROUND = "probe of a search", "round of a search"


def plain(folder: Path, limit: int) -> dict[str, Any]:
    """A plain script's speed under this limit."""
    sizes = {"per_device_train_batch_size": MICRO, "gradient_accumulation_steps": GLOBAL_BATCH // MICRO}
    write_json(folder / "best_training_arguments.json", sizes | {"use_cpu": True})
    write_json(folder / "best_model_arguments.json", {})
    script = str(ROOT / "benchmarks" / "plain_training.py")
    command = [sys.executable, script, str(folder), str(limit), str(PLAIN_SECONDS)]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    answer = json.loads(out.splitlines()[-1])
    return {"samples_per_second": answer["samples_per_second"], "step_times_s": answer["step_times_s"]}


def facts(measurement: Measurement) -> dict[str, Any]:
    """What is kept of a probe or a round."""
    assert measurement.outcome is Outcome.COMPLETED, measurement.reason
    return {
        "samples_per_second": measurement.samples_per_second,
        "step_times_s": [step.seconds for step in measurement.composed_steps],
        "run_step_times_s": [step.seconds for step in measurement.steps],
        "untimed_steps": measurement.untimed_steps,
        "warnings": [*map(str, measurement.warnings)],
        "surroundings": dict(measurement.surroundings),
    }


def hosted(workload: Workload, environment: Environment, folder: Path) -> dict[str, dict[str, Any]]:
    """A new host's first probe, then a round and another probe."""
    configuration = Configuration.exact(GLOBAL_BATCH, MICRO, SETTINGS)
    with ProbeHost() as host:
        probe = LiveProbe(host, environment, workload, {}, int(0.95 * LIMIT), lambda n, c: folder / f"{n}-{c}")
        kinds = {
            FIRST: ProbeOptions(Slot(), 300.0),
            ROUND: ProbeOptions(Slot(0, 1), 300.0),
            LATER: ProbeOptions(Slot(1), 300.0),
        }
        return {name: facts(probe(configuration, options)) for name, options in kinds.items()}


def searched(folder: Path) -> dict[str, dict[str, Any]]:
    """A search of the baseline alone, as a user starts it."""
    command = [sys.executable, "-m", "autotune", "search", MODEL, "-b", str(GLOBAL_BATCH), "--device", "cpu"]
    command += [
        "--sequence-length",
        str(LENGTH),
        "--memory-limit",
        "600MiB",
        "--n-trials",
        "1",
        "--no-history",
        "--fresh",
    ]
    command += ["--output-dir", str(folder), "--study-name", "alone", "--quiet"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, cwd=ROOT)
    measured = {SEARCHED: "measurement.json", SEARCHED_ROUND: "confirmation-1/measurement.json"}
    probes = folder / "alone" / "probes" / "0000"
    return {name: facts(Measurement.from_dict(read_json(probes / path))) for name, path in measured.items()}


def processor_seconds() -> tuple[float, float]:
    """(seconds of all, seconds that other machines took) of all processors since the start, in ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return float(sum(ticks)), float(ticks[7])


def measured_pair(number: int, folder: Path, ways: list[Callable[[], dict[str, dict[str, Any]]]]) -> dict[str, Any]:
    """All ways, from another one on in each pair; those of an earlier run are read from their file."""
    path = folder / f"pair-{number}.json"
    if not path.exists():
        turn = number % len(ways)
        together: dict[str, Any] = {}
        for way in ways[turn:] + ways[:turn]:
            before, begun = processor_seconds(), time.time()
            answers = way()
            after = processor_seconds()
            stolen = (after[1] - before[1]) / max(1.0, after[0] - before[0])
            together |= {name: answer | {"begun": begun, "stolen": stolen} for name, answer in answers.items()}
        write_json(path, together)
    pair = read_json(path)
    print(number, {name: round(answer["samples_per_second"], 1) for name, answer in pair.items()}, flush=True)
    return dict(pair)


def table(pairs: list[dict[str, Any]]) -> list[str]:
    """A row for each way: its median, its speeds, and how many times as fast as the plain script beside it."""
    lines = [
        "| measured as | median | samples/s | against the plain script | stolen at most |",
        "|---|---|---|---|---|",
    ]
    of_plain = [pair[PLAIN]["samples_per_second"] for pair in pairs]
    for name in (PLAIN, UNLIMITED, SEARCHED, SEARCHED_ROUND, FIRST, ROUND, LATER):
        speeds = [pair[name]["samples_per_second"] for pair in pairs]
        ratio = quotient_interval(speeds, of_plain)
        beside = "-" if name == PLAIN else format_interval(ratio, ratio.low, ratio.high)
        each = ", ".join(f"{speed:.1f}" for speed in speeds)
        stolen = max(pair[name]["stolen"] for pair in pairs)
        lines.append(f"| {name} | {median(speeds):.1f} | {each} | {beside} | {stolen:.1%} |")
    return [
        *lines,
        "",
        f"{len(pairs)} pairs; the last columns are the geometric mean of a pair's quotients with its 95 % interval, and the "
        "share of processor time that other machines took. A probe of the search is composed from three micro-steps.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()) / "baseline-bias")
    parser.add_argument("--pairs", type=int, default=6)
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with ProbeHost() as host:
        request = tuning_request(MODEL, GLOBAL_BATCH, sequence_length=LENGTH, device="cpu")
        wanted = {"request": request.to_dict(), "cache": str(folder / "cache")}
        workload = Workload.from_dict(asked(host, "prepare", wanted))
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
    write_json(folder / "request.json", {"workload": workload.to_dict()})
    ways = [
        lambda: {PLAIN: plain(folder, LIMIT)},
        lambda: hosted(workload, environment, folder / "probes"),
        lambda: {UNLIMITED: plain(folder, 64 << 30)},
        lambda: searched(folder / "search"),
    ]
    pairs = [measured_pair(number, folder, ways) for number in range(options.pairs)]
    write_table(folder / "baseline_bias.md", "One baseline, measured in seven ways", table(pairs))


if __name__ == "__main__":
    main()
