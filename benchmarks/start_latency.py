"""How long it takes from an order sent to the child's first line; prints a table and writes it to reports/.

python benchmarks/start_latency.py [N]: N tiny probes (20), one after the other, on an otherwise idle machine.
Imports of optional libraries and the CUDA context come after the first line and are not counted.
"""

import math
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe.order import Order, Timing  # noqa: E402
from autotune.probe.process.answers import read_answer  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.space.setup import training_setup  # noqa: E402

TARGET_S = 0.1
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
    table = as_table(environment, sorted(seconds))
    print(table)
    report = ROOT / "reports" / "start_latency.md"
    report.parent.mkdir(exist_ok=True)
    report.write_text(table, encoding="utf-8")


def measure(host: ProbeHost, folder: Path, probes: int) -> tuple[Environment, list[float]]:
    """Seconds from each order to its child's first line."""
    asked = {"device": "cpu"}
    environment = Environment.from_dict(
        host.ask(Order(kind="capabilities", folder=str(folder / "environment"), deadline_s=600, request=asked))
    )
    request = tuning_request("gpt2-mini", 1, sequence_length=8).to_dict()
    wanted = {"request": request, "cache": str(folder / "cache")}
    workload = Workload.from_dict(
        host.ask(Order(kind="prepare", folder=str(folder / "workload"), deadline_s=600, request=wanted))
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
            "",
        ]
    )


if __name__ == "__main__":
    main()
