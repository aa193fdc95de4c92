"""How long it takes from a search's command to its first probe's order, and from an order to the child's first line.

python benchmarks/start_latency.py [N]: N tiny probes (20), one after the other, on an otherwise idle machine; prints a
table and writes it to reports/. Imports of optional libraries and the CUDA context come after the first line and are not
counted.
"""

import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import made_line  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe.order import Order, Timing  # noqa: E402
from autotune.probe.process.answers import ask, read_answer  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.space.setup import training_setup  # noqa: E402

TARGET_S = 0.1
SEARCH_TARGETS_S = {"empty cache": 8.0, "second time": 5.0}
SEARCH = ("search", "bert-mini", "--global-batch-size", "32", "--n-trials", "1", "--device", "cpu", "--no-history")
ROUNDS = 3
SETTINGS = {
    "checkpointing": "none",
    "precision": "fp32",
    "optimizer": "adamw_torch",
    "workers": 0,
    "pin_memory": False,
}


def main() -> None:
    probes = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="start-latency-") as folder, ProbeHost() as host:
        environment, seconds = measure(host, Path(folder), probes)
    table = as_table(environment, sorted(seconds)) + search_table([seconds_to_first_order() for _ in range(ROUNDS)])
    print(table)
    report = ROOT / "reports" / "start_latency.md"
    report.parent.mkdir(exist_ok=True)
    report.write_text(table, encoding="utf-8")


def seconds_to_first_order() -> dict[str, float]:
    """Seconds from the command to its first probe's order: with an empty cache, and again."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="start-latency-") as folder:
        variables = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": folder}
        for kind in SEARCH_TARGETS_S:
            reports = Path(folder, kind)
            command = [sys.executable, "-m", "autotune", *SEARCH, "--output-dir", str(reports), "--quiet"]
            begun = time.monotonic()
            with subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL) as process:
                while not list(reports.glob("*/probes/0000/order.json")):
                    if process.poll() is not None:
                        raise SystemExit(f"the search ended with exit code {process.returncode}")
                    time.sleep(0.01)
                seconds[kind] = time.monotonic() - begun
                process.send_signal(signal.SIGTERM)
    return seconds


def search_table(rounds: list[dict[str, float]]) -> str:
    """Markdown; the median of the rounds."""
    lines = ["", "# From a search's command to its first probe's order", "", "| cache | median | target |"]
    lines.append("| --- | ---: | --- |")
    for kind, target in SEARCH_TARGETS_S.items():
        median = statistics.median(seconds[kind] for seconds in rounds)
        lines.append(f"| {kind} | {median:.1f} s | under {target:.0f} s: {'met' if median < target else 'missed'} |")
    return "\n".join([*lines, ""])


def measure(host: ProbeHost, folder: Path, probes: int) -> tuple[Environment, list[float]]:
    """Seconds from each order to its child's first line."""
    asked = {"device": "cpu"}
    environment = Environment.from_dict(
        ask(host, Order(kind="capabilities", folder=str(folder / "environment"), deadline_s=600, request=asked))
    )
    request = tuning_request("gpt2-mini", 1, sequence_length=8).to_dict()
    wanted = {"request": request, "cache": str(folder / "cache")}
    workload = Workload.from_dict(
        ask(host, Order(kind="prepare", folder=str(folder / "workload"), deadline_s=600, request=wanted))
    )
    configuration = Configuration(1, 1, settings=tuple(SETTINGS.items()))
    seconds = []
    for number in range(probes):
        order = Order(
            kind="probe",
            folder=str(folder / f"{number:04d}"),
            deadline_s=120,
            number=number,
            configuration=configuration,
            training_arguments=training_setup(configuration, environment, {}).training_arguments,
            workload=workload,
            environment=environment,
            timing=Timing(untimed_least=1, untimed_most=1, timed_least=1, timed_most=1),
        )
        measurement = read_answer(order, host.run(order))
        if measurement.seconds_to_first_line is None:
            raise SystemExit(f"probe {number} did not train: {measurement.outcome}: {measurement.reason}")
        seconds.append(measurement.seconds_to_first_line)
    return environment, seconds


def as_table(environment: Environment, seconds: list[float]) -> str:
    """Markdown; seconds ascending."""
    percentile = seconds[math.ceil(0.95 * len(seconds)) - 1]
    versions = ", ".join(f"{name} {environment.versions[name]}" for name in ("torch", "transformers", "python"))
    verdict = "met" if seconds[-1] < TARGET_S else "missed"
    return "\n".join(
        [
            "# From an order sent to the child's first line",
            "",
            "| probes | median | 95th percentile | longest | target |",
            "| ---: | ---: | ---: | ---: | --- |",
            f"| {len(seconds)} | {statistics.median(seconds) * 1000:.1f} ms | {percentile * 1000:.1f} ms "
            f"| {seconds[-1] * 1000:.1f} ms | under {TARGET_S * 1000:.0f} ms: {verdict} |",
            "",
            f"Machine: {environment.device_name}, {environment.cpu_count} cores, "
            f"{platform.system()} {platform.release().split('-')[0]}; {versions}; "
            f"load average {os.getloadavg()[0]:.2f} at the end.",
            made_line(),
            "",
        ]
    )


if __name__ == "__main__":
    main()
